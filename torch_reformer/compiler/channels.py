"""Convolutions of images whose many channels are no multiple of 8, in 16-bit types on GPUs. The vendors' fast kernels
add zeros to such images in a pass of their own, in each call; here the kernel that makes the images writes them among
zeros (rules/padding.py), once for all convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten

_MULTIPLE, _MANY = 8, 64
_TYPES = (torch.bfloat16, torch.float16)


def _takes(input: Tensor, transposed: bool, groups: int) -> bool:
    return (
        input.device.type == "cuda"
        and input.dim() == 4
        and input.dtype in _TYPES
        and not transposed
        and groups == 1
        and input.numel() > 0
        and input.shape[1] > _MANY
        and input.shape[1] % _MULTIPLE != 0
        and input.permute(0, 2, 3, 1).is_contiguous()
    )


def _with_zeros(tensor: Tensor) -> Tensor:
    pixels = tensor.permute(0, 2, 3, 1)
    return aten.constant_pad_nd(pixels, [0, -tensor.shape[1] % _MULTIPLE]).permute(0, 3, 1, 2)


def _forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride, padding, dilation, transposed, output_padding, groups
) -> Tensor:
    if not _takes(input, transposed, groups):
        return NotImplemented
    rest = stride, padding, dilation, transposed, output_padding, groups
    return aten.convolution(_with_zeros(input), _with_zeros(weight), bias, *rest)


def _backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    wanted,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not _takes(input, transposed, groups):
        return NotImplemented
    rest = bias_sizes, stride, padding, dilation, transposed, output_padding, groups, wanted
    found = aten.convolution_backward(grad, _with_zeros(input), _with_zeros(weight), *rest)
    channels = input.shape[1]
    return tuple(None if each is None else each[:, :channels] for each in found[:2]) + (found[2],)


DECOMPOSITIONS = {aten.convolution.default: _forward, aten.convolution_backward.default: _backward}
