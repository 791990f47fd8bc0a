"""Convolutions of images whose many channels are no multiple of 8, in 16-bit types on GPUs. The vendors' fast kernels
add zeros to such images in a pass of their own, in each call; here the kernel that makes the images writes them among
zeros (lowering/constant_pad.py), once for all convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import NARROW
from .convolution import Numbers, decompositions_of

aten = torch.ops.aten

_MULTIPLE, _MANY = 8, 64


def _supports(input: Tensor, numbers: Numbers) -> bool:
    return (
        input.device.type == "cuda"
        and input.dim() == 4
        and input.dtype in NARROW
        and not numbers.transposed
        and numbers.groups == 1
        and input.numel() > 0
        and input.shape[1] > _MANY
        and input.shape[1] % _MULTIPLE != 0
        and input.permute(0, 2, 3, 1).is_contiguous()
    )


def _with_zeros(tensor: Tensor) -> Tensor:
    pixels = tensor.permute(0, 2, 3, 1)
    return aten.constant_pad_nd(pixels, [0, -tensor.shape[1] % _MULTIPLE]).permute(0, 3, 1, 2)


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, numbers: Numbers) -> Tensor:
    if not _supports(input, numbers):
        return NotImplemented
    return aten.convolution(_with_zeros(input), _with_zeros(weight), bias, *numbers)


def _backward(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes, numbers: Numbers, wanted):
    if not _supports(input, numbers):
        return NotImplemented
    images = grad, _with_zeros(input), _with_zeros(weight)
    found = aten.convolution_backward(*images, bias_sizes, *numbers, wanted)
    channels = input.shape[1]
    return tuple(None if each is None else each[:, :channels] for each in found[:2]) + (found[2],)


DECOMPOSITIONS = decompositions_of(_forward, _backward)
