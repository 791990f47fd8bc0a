"""What is added to rows of a tensor by their numbers, as a graph's nodes add up what adjacent ones give: the numbers
are sorted, once for all that is added by them, and each row is added up in a fixed order. PyTorch's kernels add by
atomic operations on GPUs, in an order that changes from run to run, and round each sum.

passes/read_messages.py has sums read what was looked up where it is."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import SUMMED_IN_FP32

aten, reformer = torch.ops.aten, torch.ops.reformer

_FEWEST = 1 << 14  # numbers: fewer are added faster than they are sorted


def supports(into: Tensor, numbers: Tensor, source: Tensor) -> bool:
    return (
        source.device.type == into.device.type
        and source.device.type in ("cpu", "cuda")
        and source.dtype == into.dtype
        and (source.dtype in SUMMED_IN_FP32 or (source.dtype == torch.float64 and source.device.type == "cpu"))
        and numbers.dtype in (torch.int64, torch.int32)
        and numbers.dim() == 1
        and numbers.numel() >= _FEWEST
        and source.dim() == into.dim() > 0
        and source.numel() > 0
        and into.numel() > 0
    )


def add_rows(into: Tensor, numbers: Tensor, source: Tensor, of: str) -> Tensor:
    """``into`` with the source's rows added to those of these numbers. of: whose (csrc/operators/segments.h)."""
    rows = into.shape[0]
    order, begins = reformer._sort_rows(reformer._row_numbers(numbers, rows, of), rows)
    source = source.reshape(len(numbers), -1)
    return reformer._segment_sum(source, order, begins, into.reshape(rows, -1), None).view(into.shape)


def _index_add(into: Tensor, dim: int, numbers: Tensor, source: Tensor, alpha=1) -> Tensor:
    if not supports(into, numbers, source) or dim % into.dim() or alpha != 1:
        return NotImplemented
    return add_rows(into, numbers, source, "index_add")


def _index_put(into: Tensor, indices: list[Tensor | None], source: Tensor, accumulate: bool = False) -> Tensor:
    if len(indices) != 1 or not accumulate or not supports(into, indices[0], source):
        return NotImplemented
    if source.shape != (len(indices[0]), *into.shape[1:]):
        return NotImplemented
    return add_rows(into, indices[0], source, "index")


def _scatter_add(into: Tensor, dim: int, numbers: Tensor, source: Tensor) -> Tensor:
    if numbers.shape != source.shape or source.shape[1:] != into.shape[1:] or (rows := _of_rows(numbers)) is None:
        return NotImplemented
    return _index_add(into, dim, rows, source)


def _index(tensor: Tensor, indices: list[Tensor | None]) -> Tensor:
    """As index_select, which kernels read in place (fusion/fuse_gather.py)."""
    if len(indices) != 1 or not supports(tensor, indices[0], tensor) or tensor.dim() != 2:
        return NotImplemented
    return torch.index_select(tensor, 0, reformer._row_numbers(indices[0], len(tensor), "index"))


def _gather(tensor: Tensor, dim: int, numbers: Tensor, sparse_grad: bool = False) -> Tensor:
    if numbers.shape[1:] != tensor.shape[1:] or (rows := _of_rows(numbers)) is None:
        return NotImplemented
    if not supports(tensor, rows, tensor) or tensor.dim() != 2 or dim % 2:
        return NotImplemented
    return torch.index_select(tensor, 0, reformer._row_numbers(rows, len(tensor), "index_add"))


def _of_rows(numbers: Tensor) -> Tensor | None:
    """The number of each row, if all its elements have the same by an expansion."""
    if numbers.dim() < 2 or numbers.numel() == 0:
        return None
    if any(stride for size, stride in zip(numbers.shape[1:], numbers.stride()[1:], strict=True) if size > 1):
        return None
    return numbers.as_strided(numbers.shape[:1], numbers.stride()[:1])


DECOMPOSITIONS = {
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scatter_add.default: _scatter_add,
}
