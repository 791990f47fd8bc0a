"""Circular pads as reads by an index along each axis, which lowering/constant_indices.py has.

PyTorch writes slices of the source into its result, one after another, in up to ten operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ir.through_maps import can_map


def padded(input: Tensor, pad: Sequence[int]) -> Tensor:
    """The padded tensor, which is contiguous as PyTorch's."""
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        if before or after:
            index = torch.arange(-before, input.shape[-i] + after, device=input.device) % input.shape[-i]
            input = input.index_select(input.dim() - i, index)
    return input.contiguous() if any(pad) else input.clone(memory_format=torch.contiguous_format)


def is_indexed(input: Tensor, pad: Sequence[int]) -> bool:
    """True for a pad by numbers of a tensor that programs read through maps. PyTorch raises its errors for others."""
    rank, axes = input.dim(), len(pad) // 2
    if len(pad) % 2 or rank - axes != 2 or axes > 3:
        return False
    if not all(isinstance(number, int) for number in (*input.shape, *pad)):
        return False
    sizes = [input.shape[-1 - i] for i in range(axes)]
    pads = list(zip(pad[::2], pad[1::2], strict=True))
    if any(min(of_axis) < 0 or max(of_axis) > size for size, of_axis in zip(sizes, pads, strict=True)):
        return False
    new_sizes = [size + sum(of_axis) for size, of_axis in zip(sizes, pads, strict=True)]
    return min(new_sizes) > 0 and input.numel() > 0 and can_map(input.device, new_sizes)
