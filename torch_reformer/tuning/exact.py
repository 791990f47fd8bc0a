"""Reference convolutions in fp64, as one matrix product per tap of the filter, to check results on a GPU.

The vendor's library would first have to search for an fp64 kernel, which takes longer than all timings.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..problem import ConvProblem
from .workload import Workload


def exact(work: Workload) -> Tensor:
    """Result of the problem's direction in fp64."""
    return {"F": _forward, "B": _input_grad, "W": _weight_grad}[work.problem.direction](work)


# Layouts below: images [group, n, row, column, channel], filters [r, s, group, output channel, input channel].


def _images(tensor: Tensor, groups: int) -> Tensor:
    n, c, h, w = tensor.shape
    return tensor.double().view(n, groups, c // groups, h, w).permute(1, 0, 3, 4, 2).contiguous()


def _tensor(images: Tensor) -> Tensor:
    groups, n, h, w, c = images.shape
    return images.permute(1, 0, 4, 2, 3).reshape(n, groups * c, h, w)


def _filters(weight: Tensor, groups: int) -> Tensor:
    k, c, r, s = weight.shape
    return weight.double().view(groups, k // groups, c, r, s).permute(3, 4, 0, 1, 2).contiguous()


def _padded(x: Tensor, p: ConvProblem) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, p.pad_w, p.pad_w, p.pad_h, p.pad_h))


def _taps(padded: Tensor, p: ConvProblem) -> Iterator[tuple[int, int, Tensor]]:
    """For each tap of the filter, the input positions that it is applied to, one for each output position."""
    for r in range(p.r):
        for s in range(p.s):
            top, left = r * p.dilation_h, s * p.dilation_w
            rows = slice(top, top + (p.out_h - 1) * p.stride_h + 1, p.stride_h)
            columns = slice(left, left + (p.out_w - 1) * p.stride_w + 1, p.stride_w)
            yield r, s, padded[:, :, rows, columns]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for each group. Depthwise convolutions consist of vector products, for which matrix libraries are
    slow."""
    if a.shape[-1] == 1:
        return a * b
    return (a * b.mT).sum(-1, keepdim=True) if b.shape[-1] == 1 else a @ b


def _forward(work: Workload) -> Tensor:
    p = work.problem
    x, filters = _padded(_images(work.input, p.groups), p), _filters(work.weight, p.groups)
    y = x.new_zeros(p.groups, p.n * p.out_h * p.out_w, p.k // p.groups)
    for r, s, pixels in _taps(x, p):
        y += _product(pixels.flatten(1, 3), filters[r, s].mT)
    result = _tensor(y.unflatten(1, (p.n, p.out_h, p.out_w)))
    return result if work.bias is None else result + work.bias.double().view(1, -1, 1, 1)


def _input_grad(work: Workload) -> Tensor:
    p = work.problem
    y, filters = _images(work.output_grad, p.groups).flatten(1, 3), _filters(work.weight, p.groups)
    padded = _padded(y.new_zeros(p.groups, p.n, p.h, p.w, p.c // p.groups), p)
    for r, s, pixels in _taps(padded, p):
        pixels += _product(y, filters[r, s]).view(pixels.shape)
    return _tensor(padded[:, :, p.pad_h : p.pad_h + p.h, p.pad_w : p.pad_w + p.w])


def _weight_grad(work: Workload) -> Tensor:
    p = work.problem
    x, y = _padded(_images(work.input, p.groups), p), _images(work.output_grad, p.groups).flatten(2, 3).mT
    filters = x.new_empty(p.r, p.s, p.groups, p.k // p.groups, p.c // p.groups)
    for r, s, pixels in _taps(x, p):
        filters[r, s] = _product(y, pixels.flatten(2, 3)).sum(1)  # one product per batch element keeps a GPU busy
    return filters.permute(2, 3, 4, 0, 1).reshape(p.weight_size)
