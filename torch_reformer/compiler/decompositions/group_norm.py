"""Group norm by sums over channel maps (all spatial positions of one channel of one batch element). A program reads
the tensor once for these sums, in the order of its memory, and once for the result. Combining the sums of a group's
channel maps is little work. If there is one position, as of tokens [N, C], groups are rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .norms import statistics_type
from .widen import wide

aten = torch.ops.aten


def _broadcast(values: Tensor, by_group: tuple[int, int, int], like: Tensor) -> Tensor:
    """Values of groups ``[N, groups, 1]`` or of channel maps ``[N, groups, C / groups]``, with dimensions of size 1 for
    the spatial ones of `like`."""
    return values.expand(by_group).reshape(*like.shape[:2], *[1] * (like.dim() - 2))


def _centred(x: Tensor, mean: Tensor, by_group: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The elements, less the mean where groups have one channel, as instance norm's, and the mean that is left in them:
    there a large mean does not cancel out, so results are as exact as PyTorch's, which computes instance norm by batch
    norm. PyTorch's group norm does not subtract the mean first either."""
    if by_group[2] > 1:
        return x, mean
    return x - _broadcast(mean, by_group, x), torch.zeros_like(mean)


def _forward(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if not input.numel():
        return NotImplemented
    x, by_group = wide(input), (batch, groups, channels // groups)
    if positions > 1:
        variances, means = torch.var_mean(x, [*range(2, x.dim())], correction=0)
        # Combine statistics of parts of equal size: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm
        # for computing sample variances, 1979.
        means, variances = means.view(by_group), variances.view(by_group)
        mean = means.mean(2, keepdim=True)
        variance = (variances + (means - mean).square()).mean(2, keepdim=True)
    else:
        variance, mean = torch.var_mean(x.reshape(by_group), 2, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    scale = rstd if weight is None else rstd * wide(weight).view(by_group[1:])
    x, mean_left = _centred(x, mean, by_group)
    shift = -mean_left * scale if bias is None else wide(bias).view(by_group[1:]) - mean_left * scale
    result = x * _broadcast(scale, by_group, x) + _broadcast(shift, by_group, x)
    dtype = statistics_type(input, weight, bias)
    return result.to(input.dtype), mean.squeeze(2).to(dtype), rstd.squeeze(2).to(dtype)


def _backward(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    is_empty = input.numel() == 0  # PyTorch's rule divides by the number of elements
    # One order of memory for both, as PyTorch's formula had before torch 2.14; else kernels read one of them across.
    grad = grad.contiguous(memory_format=suggest_memory_format(input))
    g, x = wide(grad), wide(input)
    over, by_group = [*range(2, x.dim())], (batch, groups, channels // groups)
    mean, rstd = (wide(each).unsqueeze(2) for each in (mean, rstd))
    x, mean_left = _centred(x, mean, by_group)
    sums, products = ((each.sum(over) if over else each).view(by_group) for each in (g, g * x))
    grads: list[Tensor | None] = [None, None, None]
    if output_mask[0] and is_empty:
        grads[0] = torch.empty_like(input)
    elif output_mask[0]:
        factor = 1.0 if weight is None else wide(weight).view(by_group[1:])
        group_sums, group_products = ((each * factor).sum(2, keepdim=True) for each in (sums, products))
        # Gradients through the variance and the mean, which depend on each element, too.
        count = positions * by_group[2]
        by_variance = (group_sums * mean_left - group_products) * rstd * rstd * rstd / count
        by_mean = -by_variance * mean_left - group_sums * rstd / count
        g_factor, x_factor, shift = (_broadcast(each, by_group, x) for each in (rstd * factor, by_variance, by_mean))
        grads[0] = (g * g_factor + x * x_factor + shift).to(input.dtype)
    if output_mask[1]:
        of_weight = ((products - sums * mean_left) * rstd).sum(0).view(channels)
        grads[1] = of_weight.to(input.dtype if weight is None else weight.dtype)
    if output_mask[2]:
        grads[2] = sums.sum(0).view(channels).to(input.dtype if weight is None else weight.dtype)
    return tuple(grads)


DECOMPOSITIONS = {
    aten.native_group_norm.default: _forward,
    aten.native_group_norm_backward.default: _backward,
}
