"""Run convolutions that cut images of few channels into patches as the matrix products that they are. Their stride is
the size of the filter. GPU kernels of convolutions expect eight channels or more, and pad the images to that many; the
copy of the patches costs less if a kernel casts the images anyway, as it then writes the copy. On CPUs convolutions are
faster."""

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
        tuple(values) * 2 if len(values) == 1 else tuple(values) for values in (numbers.stride, numbers.dilation)
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
    """Patches ``[N * H / h * W / w, h * w * C]``, each in the order of a filter in channels_last."""
    n, c, h, w = input.shape
    rows = input.permute(0, 2, 3, 1).reshape(n, h // size[0], size[0], w // size[1], size[1] * c)
    return rows.transpose(2, 3).reshape(n * (h // size[0]) * (w // size[1]), size[0] * size[1] * c)


def _filters(weight: Tensor) -> Tensor:
    return weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)


def product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolution whose stride is the size of the filter."""
    n, _, h, w = input.shape
    size = weight.shape[2:]
    patches, filters = _patches(input, size), _filters(weight).t()
    result = torch.mm(patches, filters) if bias is None else torch.addmm(bias, patches, filters)
    return result.view(n, h // size[0], w // size[1], -1).permute(0, 3, 1, 2)


def weight_gradient(grad: Tensor, input: Tensor, weight: Tensor) -> Tensor:
    """Gradient of :func:`product` with respect to its weight."""
    k, c, h, w = weight.shape
    rows = grad.permute(0, 2, 3, 1).reshape(-1, k)
    return torch.mm(rows.t(), _patches(input, (h, w))).view(k, h, w, c).permute(0, 3, 1, 2)


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, numbers: Numbers) -> Tensor:
    return product(input, weight, bias) if _supports(input, weight, numbers) else NotImplemented


def _backward(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes, numbers: Numbers, output_mask):
    # A gradient of the images, which a model's first layer does not need, would have to be put together from patches.
    if output_mask[0] or not _supports(input, weight, numbers):
        return NotImplemented
    weight_grad = weight_gradient(grad, input, weight) if output_mask[1] else None
    return None, weight_grad, grad.sum((0, 2, 3)) if output_mask[2] else None


DECOMPOSITIONS = decompositions_of(_forward, _backward)
