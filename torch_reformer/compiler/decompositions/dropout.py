"""Dropout by numbers that are computed where they are needed, forward and backward, from a key of 64 bits: only the key
is saved. PyTorch's generators give the keys, so a seed repeats a run."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ir.custom_ops import draw_key, random

aten = torch.ops.aten


def _numbers(like: Tensor) -> Tensor:
    """Random ones, of images in the order of memory that an element-wise result of this tensor has. Others have the
    dimensions' own: what comes next, as a sum with what the dropout's block was given, does as well, and what is in
    another order is read where it is."""
    key = draw_key(-(2**63), 2**63 - 1, [1], dtype=torch.int64, device=like.device)
    memory_format = torch.preserve_format if like.dim() == 4 else torch.contiguous_format
    return random(key, like.shape, torch.empty_like(like, memory_format=memory_format).stride())


def _native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    survives = _numbers(input) >= p
    return input * survives.to(input.dtype) * (0.0 if p == 1 else 1 / (1 - p)), survives


def _bernoulli(input: Tensor, p: float, *, generator: torch.Generator | None = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    return (_numbers(input) < p).to(input.dtype)


DECOMPOSITIONS = {aten.native_dropout.default: _native_dropout, aten.bernoulli.p: _bernoulli}
