"""Rolls of channels_last images on CPUs, which keep their memory format in eager mode; PyTorch's fake operator gives
contiguous ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten


def _roll(input: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Roll the contiguous view whose last dimension is the channels. Eager's result is contiguous after a roll by
    nothing."""
    if input.device.type != "cpu" or not dims or not all(isinstance(size, int) and size for size in input.shape):
        return NotImplemented
    if suggest_memory_format(input) == torch.contiguous_format:
        return NotImplemented
    if any(shift % input.shape[dim] == 0 for shift, dim in zip(shifts, dims, strict=True)):
        return NotImplemented
    rank = input.dim()
    order = [0, *range(2, rank), 1]
    rolled = aten.roll(input.permute(order), shifts, [order.index(dim % rank) for dim in dims])
    return rolled.permute([order.index(d) for d in range(rank)])


DECOMPOSITIONS = {aten.roll.default: _roll}
