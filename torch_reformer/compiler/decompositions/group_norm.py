"""Group norm by sums over planes, which are all pixels of an image's channel: a program reads the tensor once for them,
along whatever order its memory has, and once for the result; what is made of a group's planes is small."""

from __future__ import annotations

import torch
from torch import Tensor

from .norms import statistics_type

aten = torch.ops.aten


def _supports(input: Tensor, pixels: int) -> bool:
    return input.dim() > 2 and pixels > 1 and input.numel() > 0


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


def _of_pixels(values: Tensor, of_group: tuple[int, int, int], like: Tensor) -> Tensor:
    """Numbers of groups ``[N, groups, 1]`` or planes ``[N, groups, K / groups]`` for each pixel of the tensor."""
    return values.expand(of_group).reshape(*like.shape[:2], *[1] * (like.dim() - 2))


def _forward(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    images: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if not _supports(input, pixels):
        return NotImplemented
    x = _wide(input)
    variances, means = torch.var_mean(x, [*range(2, x.dim())], correction=0)
    # Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm, 1979: of planes of one size.
    of_group = (images, groups, channels // groups)
    means, variances = means.view(of_group), variances.view(of_group)
    mean = means.mean(2, keepdim=True)
    variance = (variances + (means - mean).square()).mean(2, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    scale = rstd if weight is None else rstd * _wide(weight).view(of_group[1:])
    shift = -mean * scale if bias is None else _wide(bias).view(of_group[1:]) - mean * scale
    result = x * _of_pixels(scale, of_group, x) + _of_pixels(shift, of_group, x)
    dtype = statistics_type(input, weight, bias)
    return result.to(input.dtype), mean.squeeze(2).to(dtype), rstd.squeeze(2).to(dtype)


def _backward(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    images: int,
    channels: int,
    pixels: int,
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if not _supports(input, pixels):
        return NotImplemented
    g, x = _wide(grad), _wide(input)
    over, of_group = [*range(2, x.dim())], (images, groups, channels // groups)
    mean, rstd = (_wide(each).unsqueeze(2) for each in (mean, rstd))
    sums, products = g.sum(over).view(of_group), (g * x).sum(over).view(of_group)
    grads: list[Tensor | None] = [None, None, None]
    if wanted[0]:
        factor = 1.0 if weight is None else _wide(weight).view(of_group[1:])
        of_sums, of_products = ((each * factor).sum(2, keepdim=True) for each in (sums, products))
        # What the variance and the mean, which depend on the element too, take away.
        count = pixels * of_group[2]
        by_variance = (of_sums * mean - of_products) * rstd * rstd * rstd / count
        by_mean = -by_variance * mean - of_sums * rstd / count
        of_g, of_x, rest = (_of_pixels(each, of_group, x) for each in (rstd * factor, by_variance, by_mean))
        grads[0] = (g * of_g + x * of_x + rest).to(input.dtype)
    if wanted[1]:
        grads[1] = (
            ((products - sums * mean) * rstd).sum(0).view(channels).to(input.dtype if weight is None else weight.dtype)
        )
    if wanted[2]:
        grads[2] = sums.sum(0).view(channels).to(input.dtype if weight is None else weight.dtype)
    return tuple(grads)


DECOMPOSITIONS = {
    aten.native_group_norm.default: _forward,
    aten.native_group_norm_backward.default: _backward,
}
