"""Pad the channels of 16-bit 2d convolutions on GPUs to a multiple of 8, if they are many. The vendors' fast kernels
pad such images in a separate pass, in each call. Here the kernel that computes the images writes them among zeros
(lowering/constant_pad.py), once for all convolutions that read them."""

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
    channels_inside = tensor.permute(0, 2, 3, 1)
    return aten.constant_pad_nd(channels_inside, [0, -tensor.shape[1] % _MULTIPLE]).permute(0, 3, 1, 2)


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, numbers: Numbers) -> Tensor:
    if not _supports(input, numbers):
        return NotImplemented
    return aten.convolution(_with_zeros(input), _with_zeros(weight), bias, *numbers)


def _backward(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes, numbers: Numbers, output_mask):
    if not _supports(input, numbers):
        return NotImplemented
    images = grad, _with_zeros(input), _with_zeros(weight)
    *grads, bias_grad = aten.convolution_backward(*images, bias_sizes, *numbers, output_mask)
    channels = input.shape[1]
    return *(None if each is None else each[:, :channels] for each in grads), bias_grad


DECOMPOSITIONS = decompositions_of(_forward, _backward)
