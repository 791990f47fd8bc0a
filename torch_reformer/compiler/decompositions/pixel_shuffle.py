"""Pixel shuffles on GPUs, whose results are contiguous in eager mode; PyTorch's decompositions copy those of
channels_last images once more, to channels_last."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def _pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    if input.device.type == "cpu" or upscale_factor == 1 or input.dim() < 3:
        return NotImplemented
    *batch, c, h, w = input.shape
    r, n = upscale_factor, len(batch)
    apart = input.reshape(*batch, c // r**2, r, r, h, w)
    moved = apart.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return moved.clone(memory_format=torch.contiguous_format).view(*batch, c // r**2, h * r, w * r)


def _pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    if input.device.type == "cpu" or downscale_factor == 1 or input.dim() < 3:
        return NotImplemented
    *batch, c, h, w = input.shape
    r, n = downscale_factor, len(batch)
    apart = input.reshape(*batch, c, h // r, r, w // r, r)
    moved = apart.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return moved.clone(memory_format=torch.contiguous_format).view(*batch, c * r**2, h // r, w // r)


DECOMPOSITIONS = {aten.pixel_shuffle.default: _pixel_shuffle, aten.pixel_unshuffle.default: _pixel_unshuffle}
