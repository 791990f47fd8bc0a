"""Max pooling with one byte per output in place of PyTorch's int64 indices: fake kernels, and an implementation by
PyTorch's operators for cases without a GPU kernel. Sizes are PyTorch's, memory formats those of
csrc/operators/max_pool.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from . import fake

_aten = torch.ops.aten


def _memory_format(like: Tensor) -> torch.memory_format:
    return torch.channels_last if fake.result_is_channels_last(like, like) else torch.contiguous_format


def _tops(outputs: int, axis: int, stride, padding, like: Tensor) -> Tensor:
    """First input row (axis 0) or column (axis 1) of each window."""
    tops = torch.arange(outputs, device=like.device) * stride[axis] - padding[axis]
    return tops if axis else tops.unsqueeze(1)


def _unfused(input: Tensor, window, stride, padding, dilation, ceil_mode) -> tuple[Tensor, Tensor]:
    result, indices = _aten.max_pool2d_with_indices(input, window, stride, padding, dilation, ceil_mode)
    rows, columns = (
        (at - _tops(result.shape[2 + axis], axis, stride, padding, input)) // dilation[axis]
        for axis, at in enumerate((indices // input.shape[3], indices % input.shape[3]))
    )
    places = (rows * window[1] + columns).to(torch.uint8)
    memory_format = _memory_format(input)
    return result.contiguous(memory_format=memory_format), places.contiguous(memory_format=memory_format)


def _unfused_grad(grad: Tensor, places: Tensor, size, window, stride, padding, dilation) -> Tensor:
    like = grad.new_empty((*grad.shape[:2], *size))
    wide = places.long()
    rows, columns = (
        at * dilation[axis] + _tops(grad.shape[2 + axis], axis, stride, padding, grad)
        for axis, at in enumerate((wide // window[1], wide % window[1]))
    )
    geometry = window, stride, padding, dilation
    floors = [(n + 2 * p - d * (w - 1) - 1) // s + 1 for n, w, s, p, d in zip(size, *geometry, strict=True)]
    ceil_mode = list(grad.shape[2:]) != floors
    result = _aten.max_pool2d_with_indices_backward(grad, like, *geometry, ceil_mode, rows * size[1] + columns)
    return result.contiguous(memory_format=_memory_format(places))


def register(library: torch.library.Library) -> None:
    for device in ("CPU", "CUDA"):
        library.impl("_max_pool2d_unfused", _unfused, device)
        library.impl("_max_pool2d_grad_unfused", _unfused_grad, device)

    @torch.library.register_fake("reformer::_max_pool2d", lib=library)
    def _(input, window, stride, padding, dilation, ceil_mode):
        result = _aten.max_pool2d_with_indices(input, window, stride, padding, dilation, ceil_mode)[0]
        result = torch.empty(result.shape, dtype=input.dtype, device=input.device, memory_format=_memory_format(input))
        return result, torch.empty_like(result, dtype=torch.uint8)

    @torch.library.register_fake("reformer::_max_pool2d_grad", lib=library)
    def _(grad, places, size, window, stride, padding, dilation):
        size = (*grad.shape[:2], *size)
        return torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=_memory_format(places))
