"""Dropout with random numbers that the forward and the backward each compute from a 64-bit key, so that only the key is
saved. PyTorch's generators draw the keys, so a seed makes a run repeatable."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ir.custom_ops import draw_key, random

aten = torch.ops.aten


def _numbers(like: Tensor) -> Tensor:
    """Random numbers in [0, 1) of a tensor's shape.

    Those of images have the strides of an element-wise result of the tensor. Others are contiguous: that suits what
    follows as well, such as the sum of a residual block, and tensors with other strides are read in place."""
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
