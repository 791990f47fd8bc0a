"""Convolutions of sequences as those of images of one row, which they are: on GPUs there are kernels for these, which
read channels_last tensors as they lie in memory. (On CPUs PyTorch's own are faster.)"""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def _takes(input: Tensor, transposed: bool) -> bool:
    return input.dim() == 3 and input.device.type == "cuda" and not transposed and input.numel() > 0


def _numbers(stride, padding, dilation, output_padding) -> list[list[int]]:
    return [[1, stride[0]], [0, padding[0]], [1, dilation[0]], [0, output_padding[0]]]


def _forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride, padding, dilation, transposed, output_padding, groups
) -> Tensor:
    if not _takes(input, transposed):
        return NotImplemented
    stride, padding, dilation, output_padding = _numbers(stride, padding, dilation, output_padding)
    images = _images(input), _images(weight)
    return aten.convolution(*images, bias, stride, padding, dilation, False, output_padding, groups).squeeze(2)


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
    if not _takes(input, transposed):
        return NotImplemented
    stride, padding, dilation, output_padding = _numbers(stride, padding, dilation, output_padding)
    images = _images(grad), _images(input), _images(weight)
    rest = bias_sizes, stride, padding, dilation, False, output_padding, groups, wanted
    of_input, of_weight, of_bias = aten.convolution_backward(*images, *rest)
    return tuple(None if each is None else each.squeeze(2) for each in (of_input, of_weight)) + (of_bias,)


def _images(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(2)


DECOMPOSITIONS = {aten.convolution.default: _forward, aten.convolution_backward.default: _backward}
