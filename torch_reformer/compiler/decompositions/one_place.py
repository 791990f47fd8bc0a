"""Scatters to one place along a dimension, as in gradients of maxima and of an element chosen from each row: a choice
between the source and the tensor, element by element, which fuses with what is around it."""

from __future__ import annotations

import torch
from torch import Tensor

from . import scatter_reduce

aten, reformer = torch.ops.aten, torch.ops.reformer


def _is_there(into: Tensor, dim: int, index: Tensor) -> Tensor | None:
    """True where an element's place along the dimension is the index; None for an index of several places."""
    if not into.is_contiguous() or index.device != into.device:
        return None
    if not into.dim() or index.dim() != into.dim() or not index.numel():
        return None
    dim %= into.dim()
    others = [d for d in range(into.dim()) if d != dim]
    if index.shape[dim] != 1 or any(index.shape[d] != into.shape[d] for d in others):
        return None
    if into.device.type not in ("cpu", "cuda") or (dim and into.device.type in scatter_reduce.NAMES_DIMENSION):
        return None
    # The errors of scatter's indices are those of index_add's.
    numbers = reformer._row_numbers(index.reshape(-1), into.shape[dim], "index_add", 1).view(index.shape)
    places = torch.arange(into.shape[dim], dtype=numbers.dtype, device=into.device)
    return places.view(*(-1 if d == dim else 1 for d in range(into.dim()))) == numbers


def _scatter(into: Tensor, dim: int, index: Tensor, source: Tensor | float) -> Tensor:
    if isinstance(source, Tensor) and (source.shape != index.shape or source.dtype != into.dtype):
        return NotImplemented
    if not isinstance(source, Tensor) and isinstance(source, float) and not into.is_floating_point():
        return NotImplemented
    is_there = _is_there(into, dim, index)
    return NotImplemented if is_there is None else torch.where(is_there, source, into).to(into.dtype)


def _scatter_add(into: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if source.shape != index.shape or source.dtype != into.dtype or not into.is_floating_point():
        return NotImplemented
    is_there = _is_there(into, dim, index)
    return NotImplemented if is_there is None else into + torch.where(is_there, source, 0)


DECOMPOSITIONS = {
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter,
    aten.scatter_add.default: _scatter_add,
}
