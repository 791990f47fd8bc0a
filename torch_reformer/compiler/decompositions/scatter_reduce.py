"""Scatter-adds of rows by index, as in the message passing of graph neural networks and in gradients of gathers. Each
row is summed in a fixed order, in fp32. On GPUs PyTorch's kernels add by atomic operations, in an order that changes
from run to run, and round after each addition, or sort the indices in each call.

Many indices of a large table are sorted, once for all scatter-adds that use them, for sums over segments, and
passes/read_messages.py lets the sums read gathered rows from their table. On GPUs the kernel of gradients of embeddings
does the others without sorting (csrc/hip/embedding): it goes through the indices in order.

An index along a later dimension, equal in all dimensions behind it, as of the tokens that a transformer keeps, selects
rows of many tables, one for each element of the dimensions before it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...runtime.dtypes import SUMMED_IN_FP32

aten, reformer = torch.ops.aten, torch.ops.reformer

_FEWEST_SORTED = 1 << 14  # indices: adding the rows of fewer takes less time than sorting them
_FEWEST_GATHERED = 1 << 11  # rows on GPUs: storing fewer takes no longer than the kernel that checks their indices
# A table in many blocks' shared memory (csrc/hip/embedding/few_rows.cpp).
_MOST_ROWS, _MOST_ELEMENTS = 1 << 10, 1 << 15
_MOST_WRITTEN = 16  # elements of another table for each that is added: all are written
_MOST = 1 << 30  # rows and indices
NAMES_DIMENSION = {"cpu"}  # devices where the error of an index names its dimension; a GPU's is an assertion


def supports(into: Tensor, indices: Tensor, source: Tensor) -> bool:
    return (
        source.device == into.device == indices.device  # PyTorch also takes indices on the CPU for tensors on a GPU
        and source.device.type in ("cpu", "cuda")
        and source.dtype == into.dtype
        and (source.dtype in SUMMED_IN_FP32 or (source.dtype == torch.float64 and source.device.type == "cpu"))
        and indices.dtype in (torch.int64, torch.int32)
        and into.dim() > 0
        and source.numel() > 0
        and into.numel() > 0
        and indices.numel() < _MOST
        and into.shape[0] < _MOST
    )


def _is_scanned(into: Tensor, indices: Tensor, source: Tensor, tables: int = 1) -> bool:
    """True if rows are added by the kernel that goes through all indices of a table."""
    if into.device.type != "cuda":
        return False
    if into.shape[0] <= _MOST_ROWS and into.numel() <= _MOST_ELEMENTS:
        return True
    return indices.numel() < tables * _FEWEST_SORTED and into.numel() <= _MOST_WRITTEN * source.numel()


def _add_rows(into: Tensor, indices: Tensor, source: Tensor, of: str, tables: int = 1) -> Tensor:
    """`into` with row i of the source added to its row ``indices[i]``.

    Args:
        of: the PyTorch operator whose rules for indices hold, such as "index_add" (csrc/operators/segments.h).
        tables: the rows are those of so many tables, one after another, each with its part of the indices.
    """
    if not supports(into, indices, source) or source.shape != (*indices.shape, *into.shape[1:]):
        return NotImplemented
    rows, is_scanned = into.shape[0], _is_scanned(into, indices, source, tables)
    if indices.numel() < _FEWEST_SORTED and not is_scanned:
        return NotImplemented
    numbers = reformer._row_numbers(indices.reshape(-1), rows // tables, of, tables)
    source, base = source.reshape(len(numbers), -1), into.reshape(rows, -1)
    if is_scanned:
        return reformer._embedding_grad(source, numbers, rows, -1, False, base, tables).view(into.shape)
    return reformer._segment_sum(source, *reformer._sort_rows(numbers, rows), base, None).view(into.shape)


def _index_add(into: Tensor, dim: int, indices: Tensor, source: Tensor, alpha=1) -> Tensor:
    if into.dim() == 0 or dim % into.dim() or alpha != 1:
        return NotImplemented
    return _add_rows(into, indices, source, "index_add")


def _index_put(into: Tensor, indices: list[Tensor | None], source: Tensor, accumulate: bool = False) -> Tensor:
    if not accumulate:
        return NotImplemented
    if len(indices) == 1:
        return _add_rows(into, indices[0], source, "index")
    if (numbers := _joined(into, indices)) is not None:
        result = _add_rows(into.flatten(0, len(indices) - 1), numbers, source, "index")
        return result if result is NotImplemented else result.view(into.shape)
    if len(indices) == into.dim() == 2 and indices[0] is None:  # columns, as of LeViT's biases of attention
        result = _add_rows(into.t(), indices[1], source.movedim(0, -1), "index")
        return result if result is NotImplemented else result.t().contiguous()
    return NotImplemented


def _scatter_add(into: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    if indices.shape != source.shape or (rows := _of_rows(into, dim, indices)) is None:
        return NotImplemented
    result = _add_rows(into.flatten(0, rows.dim() - 1), rows, source, "index_add", math.prod(rows.shape[:-1]))
    return result if result is NotImplemented else result.view(into.shape)


def _index(tensor: Tensor, indices: list[Tensor | None]) -> Tensor:
    """Indexing of rows, of one table or by several indices of many, as index_select, whose rows kernels read from the
    table itself (fusion/fuse_gather.py)."""
    if tensor.dim() != len(indices) + 1:
        return NotImplemented
    numbers = indices[0] if len(indices) == 1 else _joined(tensor, indices)
    if numbers is None or not _are_gathered(table := tensor.flatten(0, -2), numbers):
        return NotImplemented
    return _select_rows(table, numbers.reshape(-1), "index").view(*numbers.shape, tensor.shape[-1])


def _joined(tensor: Tensor, indices: list[Tensor | None]) -> Tensor | None:
    """One index of several dimensions, the first ones, in the place of an index for each; None if there is none."""
    if tensor.device.type in NAMES_DIMENSION or not tensor.is_contiguous():
        return None
    given = [index for index in indices if index is not None]
    if len(given) < len(indices) or not all(supports(tensor, index, tensor) for index in given):
        return None
    if math.prod(tensor.shape[: len(given)]) >= _MOST:
        return None
    numbers = [
        reformer._row_numbers(index.reshape(-1), size, "index", 1).view(index.shape)
        for index, size in zip(given, tensor.shape, strict=False)
    ]
    joined = numbers[0]
    for size, each in zip(tensor.shape[1:], numbers[1:], strict=False):
        joined = joined * size + each
    return joined


def _gather(tensor: Tensor, dim: int, indices: Tensor, sparse_grad: bool = False) -> Tensor:
    if not tensor.is_contiguous() or (rows := _of_rows(tensor, dim, indices)) is None or rows.dim() == tensor.dim():
        return NotImplemented  # also of single elements
    table, tables = tensor.flatten(0, rows.dim() - 1).flatten(1), math.prod(rows.shape[:-1])
    if not _are_gathered(table, rows):
        return NotImplemented
    return _select_rows(table, rows.reshape(-1), "index_add", tables).view(indices.shape)


def _are_gathered(table: Tensor, indices: Tensor) -> bool:
    """True if the rows of a table are worth a check of their indices, after which programs can read them."""
    fewest = _FEWEST_GATHERED if table.device.type == "cuda" else _FEWEST_SORTED
    return table.dim() == 2 and indices.numel() >= fewest and supports(table, indices, table)


def _select_rows(table: Tensor, indices: Tensor, of: str, tables: int = 1) -> Tensor:
    return torch.index_select(table, 0, reformer._row_numbers(indices, len(table) // tables, of, tables))


def _of_rows(tensor: Tensor, dim: int, indices: Tensor) -> Tensor | None:
    """Index of each row, [dimensions before `dim`, index], if the indices of its elements are one number that is
    expanded, and each row of the tensor is all that lies behind `dim`; else None."""
    if indices.dim() != tensor.dim() or indices.dim() < 2 or indices.numel() == 0:
        return None
    dim %= tensor.dim()
    if dim > 1 and tensor.device.type == "cpu":  # errors name the dimension
        return None
    outer, later = slice(dim), slice(dim + 1, None)
    if indices.shape[outer] != tensor.shape[outer] or indices.shape[later] != tensor.shape[later]:
        return None
    if any(stride for size, stride in zip(indices.shape[later], indices.stride()[later], strict=True) if size > 1):
        return None
    return indices.as_strided(indices.shape[: dim + 1], indices.stride()[: dim + 1])


DECOMPOSITIONS = {
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scatter_add.default: _scatter_add,
}
