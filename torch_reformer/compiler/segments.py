"""What is added to rows of a tensor by their numbers, as a graph's nodes add up what adjacent ones give: on GPUs the
numbers are sorted, once for all that is added by them, and each row is added up in a fixed order. PyTorch's kernels add
by atomic operations there, in an order that changes from run to run, and round each sum."""

from __future__ import annotations

import torch
from torch import Tensor

aten, reformer = torch.ops.aten, torch.ops.reformer

_FEWEST = 1 << 14  # numbers: fewer are added faster than they are sorted
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def takes(into: Tensor, numbers: Tensor, source: Tensor) -> bool:
    return (
        source.device.type == into.device.type == "cuda"
        and source.dtype == into.dtype
        and source.dtype in _TYPES
        and numbers.dtype in (torch.int64, torch.int32)
        and numbers.dim() == 1
        and numbers.numel() >= _FEWEST
        and source.dim() == into.dim() > 0
        and source.numel() > 0
    )


def add_rows(into: Tensor, numbers: Tensor, source: Tensor) -> Tensor:
    """``into`` with the source's rows added to those of these numbers, which are 0 to ``len(into) - 1``."""
    rows = into.shape[0]
    ordered, order = torch.sort(numbers.to(torch.int64), stable=True)
    aten._assert_async.msg((ordered[0] >= 0) & (ordered[-1] < rows), "index out of range")
    begins = torch.searchsorted(ordered, torch.arange(rows + 1, device=numbers.device))
    found = reformer._segment_sum(source.reshape(len(numbers), -1), order, begins, into.reshape(rows, -1))
    return found.view(into.shape)


def _index_add(into: Tensor, dim: int, numbers: Tensor, source: Tensor, alpha=1) -> Tensor:
    if not takes(into, numbers, source) or dim % into.dim() or alpha != 1:
        return NotImplemented
    return add_rows(into, numbers, source)


def _index_put(into: Tensor, indices: list[Tensor | None], source: Tensor, accumulate: bool = False) -> Tensor:
    if len(indices) != 1 or not accumulate or not takes(into, indices[0], source):
        return NotImplemented
    numbers = indices[0]
    if source.shape != (len(numbers), *into.shape[1:]):
        return NotImplemented
    return add_rows(into, _from_the_beginning(numbers, into.shape[0]), source)


def _index(tensor: Tensor, indices: list[Tensor | None]) -> Tensor:
    """As index_select, which kernels read in place (look_ups.py)."""
    if len(indices) != 1 or not takes(tensor, indices[0], tensor) or tensor.dim() != 2:
        return NotImplemented
    return torch.index_select(tensor, 0, _from_the_beginning(indices[0], len(tensor)))


def _from_the_beginning(numbers: Tensor, rows: int) -> Tensor:
    return torch.where(numbers < 0, numbers + rows, numbers)


DECOMPOSITIONS = {
    aten.index.Tensor: _index,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}
