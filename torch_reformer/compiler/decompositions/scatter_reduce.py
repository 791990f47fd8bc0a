"""Scatter-adds of rows by index, as in the message passing of graph neural networks, by sums over segments. The
indices are sorted, once for all scatter-adds that use them, and each row is summed in a fixed order. On GPUs PyTorch's
kernels add by atomic operations, in an order that changes from run to run, and round after each addition.

passes/read_messages.py lets the sums read gathered rows from their table."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import SUMMED_IN_FP32

aten, reformer = torch.ops.aten, torch.ops.reformer

_FEWEST = 1 << 14  # indices: adding the rows of fewer takes less time than sorting them


def supports(into: Tensor, indices: Tensor, source: Tensor) -> bool:
    return (
        source.device.type == into.device.type
        and source.device.type in ("cpu", "cuda")
        and source.dtype == into.dtype
        and (source.dtype in SUMMED_IN_FP32 or (source.dtype == torch.float64 and source.device.type == "cpu"))
        and indices.dtype in (torch.int64, torch.int32)
        and indices.dim() == 1
        and indices.numel() >= _FEWEST
        and source.dim() == into.dim() > 0
        and source.numel() > 0
        and into.numel() > 0
    )


def add_rows(into: Tensor, indices: Tensor, source: Tensor, of: str) -> Tensor:
    """`into` with row i of the source added to its row ``indices[i]``.

    Args:
        of: the PyTorch operator whose rules for indices hold, such as "index_add" (csrc/operators/segments.h).
    """
    rows = into.shape[0]
    order, begins = reformer._sort_rows(reformer._row_numbers(indices, rows, of), rows)
    source = source.reshape(len(indices), -1)
    return reformer._segment_sum(source, order, begins, into.reshape(rows, -1), None).view(into.shape)


def _index_add(into: Tensor, dim: int, indices: Tensor, source: Tensor, alpha=1) -> Tensor:
    if not supports(into, indices, source) or dim % into.dim() or alpha != 1:
        return NotImplemented
    return add_rows(into, indices, source, "index_add")


def _index_put(into: Tensor, indices: list[Tensor | None], source: Tensor, accumulate: bool = False) -> Tensor:
    if len(indices) != 1 or not accumulate or not supports(into, indices[0], source):
        return NotImplemented
    if source.shape != (len(indices[0]), *into.shape[1:]):
        return NotImplemented
    return add_rows(into, indices[0], source, "index")


def _scatter_add(into: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    if indices.shape != source.shape or source.shape[1:] != into.shape[1:] or (rows := _of_rows(indices)) is None:
        return NotImplemented
    return _index_add(into, dim, rows, source)


def _index(tensor: Tensor, indices: list[Tensor | None]) -> Tensor:
    """Indexing of rows as index_select, whose rows kernels read from the table itself (fusion/fuse_gather.py)."""
    if len(indices) != 1 or not supports(tensor, indices[0], tensor) or tensor.dim() != 2:
        return NotImplemented
    return torch.index_select(tensor, 0, reformer._row_numbers(indices[0], len(tensor), "index"))


def _gather(tensor: Tensor, dim: int, indices: Tensor, sparse_grad: bool = False) -> Tensor:
    if indices.shape[1:] != tensor.shape[1:] or (rows := _of_rows(indices)) is None:
        return NotImplemented
    if not supports(tensor, rows, tensor) or tensor.dim() != 2 or dim % 2:
        return NotImplemented
    return torch.index_select(tensor, 0, reformer._row_numbers(rows, len(tensor), "index_add"))


def _of_rows(indices: Tensor) -> Tensor | None:
    """Index of each row, if the indices of its elements are one number that is expanded; else None."""
    if indices.dim() < 2 or indices.numel() == 0:
        return None
    if any(stride for size, stride in zip(indices.shape[1:], indices.stride()[1:], strict=True) if size > 1):
        return None
    return indices.as_strided(indices.shape[:1], indices.stride()[:1])


DECOMPOSITIONS = {
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scatter_add.default: _scatter_add,
}
