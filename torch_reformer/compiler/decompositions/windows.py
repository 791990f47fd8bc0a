"""im2col with windows that neither overlap nor have padding: its result is a copy of a view of the images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

aten = torch.ops.aten


def _im2col(
    images: Tensor, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Tensor:
    are_apart = all(step >= taps for taps, step in zip(kernel_size, stride, strict=True))
    are_adjacent = all(taps == 1 or step == 1 for taps, step in zip(kernel_size, dilation, strict=True))
    if any(padding) or not are_apart or not are_adjacent:
        return NotImplemented
    *batch, channels, _, _ = images.shape
    windows = images.unfold(-2, kernel_size[0], stride[0]).unfold(-2, kernel_size[1], stride[1])
    *_, down, across, _, _ = windows.shape
    n = len(batch)
    moved = windows.permute(*range(n + 1), n + 3, n + 4, n + 1, n + 2)
    copy = moved.clone(memory_format=torch.contiguous_format)
    return copy.view(*batch, channels * kernel_size[0] * kernel_size[1], down * across)


DECOMPOSITIONS = {aten.im2col.default: _im2col}
