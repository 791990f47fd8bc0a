"""Convolutions of images of few channels whose filters lie side by side, as those that cut images into patches, as the
matrix products that they are. GPUs' kernels of convolutions want eight channels or more, and pad the images to these;
the patches' copy is written by the kernel that casts the images, if there is one. On CPUs convolutions are faster."""

from __future__ import annotations

import torch
from torch import Tensor

from .convolution import Numbers, decompositions_of

_MOST_CHANNELS = 7


def _supports(input: Tensor, weight: Tensor, numbers: Numbers) -> bool:
    if input.device.type != "cuda" or input.dim() != 4 or numbers.transposed or numbers.groups != 1:
        return False
    size = tuple(weight.shape[2:])
    strides, dilations = (
        tuple(each) * 2 if len(each) == 1 else tuple(each) for each in (numbers.stride, numbers.dilation)
    )
    return (
        not any(numbers.padding)
        and 1 < weight.shape[1] <= _MOST_CHANNELS
        and input.numel() * weight.numel() > 0
        and strides == size != (1, 1)
        and dilations == (1, 1)
        and input.shape[2] % size[0] == input.shape[3] % size[1] == 0
        and _is_channels_last(weight)
    )


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _patches(input: Tensor, size) -> Tensor:
    """``[N * H / h * W / w, h * w * C]``, of a filter's order in channels_last."""
    n, c, h, w = input.shape
    rows = input.permute(0, 2, 3, 1).reshape(n, h // size[0], size[0], w // size[1], size[1] * c)
    return rows.transpose(2, 3).reshape(n * (h // size[0]) * (w // size[1]), size[0] * size[1] * c)


def _filters(weight: Tensor) -> Tensor:
    return weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)


def product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution with strides of the filter's size."""
    n, _, h, w = input.shape
    size = weight.shape[2:]
    patches, filters = _patches(input, size), _filters(weight).t()
    found = torch.mm(patches, filters) if bias is None else torch.addmm(bias, patches, filters)
    return found.view(n, h // size[0], w // size[1], -1).permute(0, 3, 1, 2)


def weight_gradient(grad: Tensor, input: Tensor, weight: Tensor) -> Tensor:
    k, c, h, w = weight.shape
    of_pixels = grad.permute(0, 2, 3, 1).reshape(-1, k)
    return torch.mm(of_pixels.t(), _patches(input, (h, w))).view(k, h, w, c).permute(0, 3, 1, 2)


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, numbers: Numbers) -> Tensor:
    return product(input, weight, bias) if _supports(input, weight, numbers) else NotImplemented


def _backward(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes, numbers: Numbers, wanted):
    # For the images' own gradient, which a model's first layer does not need, patches would become images again.
    if wanted[0] or not _supports(input, weight, numbers):
        return NotImplemented
    return None, weight_gradient(grad, input, weight) if wanted[1] else None, grad.sum((0, 2, 3)) if wanted[2] else None


DECOMPOSITIONS = decompositions_of(_forward, _backward)
