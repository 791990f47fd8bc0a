"""Run 1d convolutions as 2d convolutions of images with one row. On GPUs there are kernels for these that read
channels_last tensors as they are. (On CPUs PyTorch's own 1d convolutions are faster.)"""

from __future__ import annotations

import torch
from torch import Tensor

from .convolution import Numbers, decompositions_of

aten = torch.ops.aten


def _supports(input: Tensor, numbers: Numbers) -> bool:
    return input.dim() == 3 and input.device.type == "cuda" and not numbers.transposed and input.numel() > 0


def _of_images(numbers: Numbers) -> Numbers:
    return numbers._replace(
        stride=[1, *numbers.stride],
        padding=[0, *numbers.padding],
        dilation=[1, *numbers.dilation],
        output_padding=[0, *numbers.output_padding],
    )


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, numbers: Numbers) -> Tensor:
    if not _supports(input, numbers):
        return NotImplemented
    return aten.convolution(_images(input), _images(weight), bias, *_of_images(numbers)).squeeze(2)


def _backward(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes, numbers: Numbers, output_mask):
    if not _supports(input, numbers):
        return NotImplemented
    images = _images(grad), _images(input), _images(weight)
    *grads, bias_grad = aten.convolution_backward(*images, bias_sizes, *_of_images(numbers), output_mask)
    return *(None if each is None else each.squeeze(2) for each in grads), bias_grad


def _images(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(2)


DECOMPOSITIONS = decompositions_of(_forward, _backward)
