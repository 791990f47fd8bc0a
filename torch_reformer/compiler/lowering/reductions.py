"""Sums, means, maxima and variances as Reduces. The variance of a row, whose mean is known while its elements are at
hand, is a sum of squared differences from that."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of
from ..ir.graph import Graph, Reduce, Typed, View
from ..ir.iteration_space import find_space, reduces_rows, without
from ..ir.layout import Layout
from .pointwise import add_map, add_typed_map, computes

aten = torch.ops.aten
_LEAST_OF_IMAGE = 512  # elements of which some are added up, that are adjacent: as many as a block's threads have


def _reduce(graph: Graph, kind: str, view: View, dims, like: Tensor) -> list[View] | None:
    """In fp32 or fp64, with the sizes of `like`: a sum or maximum, or mean and sum of squared differences."""
    dtype, layout = view.value.dtype, view.layout
    if dtype not in FLOATS or layout.numel == 0 or (dtype == torch.float64 and view.value.device.type != "cpu"):
        return None
    over = _over(layout, dims)
    if not view.is_full and _by_itself(layout).is_dense:  # a part, read where it is
        layout = _by_itself(layout)
        view = add_typed_map(graph, "clone", lambda x: x, [view], Typed(layout, dtype, view.value.device))
    if not layout.is_dense or not view.is_full or not over:
        return None
    index_map = without(layout, over)
    if len(index_map) > 1 and index_map[-1][0] < _LEAST_OF_IMAGE:
        return None
    if find_space(layout.numel, {((1, layout.numel),)}, {index_map}) is None:
        return None  # nothing is added up
    left = [d for d in range(len(layout.sizes)) if d not in over]
    strides, expected = dict.fromkeys(left, 0), 1
    for d in sorted(left, key=lambda d: (layout.strides[d], -d)):
        strides[d] = expected
        expected *= layout.sizes[d]
    result = Layout(tuple(layout.sizes[d] for d in left), tuple(strides.values()))
    wanted = layout_of(like)
    if len(wanted.sizes) == len(layout.sizes):  # the dimensions that are gone have one element
        wanted = Layout(result.sizes, tuple(wanted.strides[d] for d in left))
    if not wanted.matches(result):
        return None  # PyTorch's lies in another order
    count = 2 if kind == "moments" else 1
    stacked = Layout((2, *result.sizes), (expected, *result.strides)) if count == 2 else result
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    (made,) = graph.add(Reduce(kind, view, over), [(stacked, wide, view.value.device)])
    return [View(made, layout_of(like, i * expected)) for i in range(count)]


def _by_itself(layout: Layout) -> Layout:
    """The layout of a part of a tensor as a tensor of its own."""
    return dataclasses.replace(layout, offset=0)


def _of_one_element(view: View, dims, like: Tensor) -> list[View] | None:
    """The sums if each is of one element."""
    layout, wanted = view.layout, layout_of(like)
    if layout.numel != wanted.numel or not layout.numel or not computes([view], like):
        return None
    over = _over(layout, dims) if len(wanted.sizes) < len(layout.sizes) else ()
    left = [d for d in range(len(layout.sizes)) if d not in over]
    sizes, strides = (tuple(each[d] for d in left) for each in (layout.sizes, layout.strides))
    if not wanted.is_dense or not wanted.matches(Layout(sizes, strides)):
        return None
    return [View(view.value, Layout(sizes, strides, layout.offset))]


def _over(layout: Layout, dims) -> tuple[int, ...]:
    return tuple(d % len(layout.sizes) for d in (dims or range(len(layout.sizes)))) if layout.sizes else ()


def _repeated(found: View, layout: Layout, over: tuple[int, ...]) -> View:
    """What was reduced over these dimensions of a tensor, for each of the tensor's elements."""
    left = [d for d in range(len(layout.sizes)) if d not in over]
    own = found.layout.strides
    strides = dict(zip(left, [own[d] for d in left] if len(own) == len(layout.sizes) else own, strict=True))
    everywhere = tuple(strides.get(d, 0) for d in range(len(layout.sizes)))
    return View(found.value, Layout(layout.sizes, everywhere, found.layout.offset))


def add_sum(graph: Graph, value, view, dims=None, keepdim=False, dtype=None, scale: float = 1.0):
    if dtype not in (None, value.dtype) or value.dtype not in FLOATS:
        return None
    if torch.float64 in (view.value.dtype, value.dtype) and view.value.dtype != value.dtype:
        return None
    found = _of_one_element(view, dims, value) or _reduce(graph, "sum", view, dims, value)
    if found is None:
        return None
    if scale == 1 and found[0].value.dtype == value.dtype and found[0].value is not view.value:
        return found[0]
    return add_map(graph, "scaled" if scale != 1 else "cast", lambda x: x * scale if scale != 1 else x, found, value)


def _mean(graph: Graph, value, view, dims=None, keepdim=False, dtype=None):
    count = view.layout.numel // max(value.numel(), 1)
    return add_sum(graph, value, view, dims, keepdim, dtype, scale=1 / count) if count else None


def _max(graph: Graph, value, view, dims=(), keepdim=False):
    found = _reduce(graph, "max", view, dims, value)
    if found is None:
        return None
    return found[0] if found[0].value.dtype == value.dtype else add_map(graph, "cast", lambda x: x, found, value)


def _var_mean(graph: Graph, value, view, dims=None, correction=None, keepdim=False):
    variance, mean = value
    count = view.layout.numel // max(mean.numel(), 1)
    divisor = count - (1 if correction is None else correction)
    if divisor <= 0 or mean.dtype != (torch.float64 if view.value.dtype == torch.float64 else torch.float32):
        return None
    layout, over = _by_itself(view.layout), _over(view.layout, dims)
    if layout.is_dense and reduces_rows(layout.numel, without(layout, over)):
        return _var_mean_of_rows(graph, variance, mean, view, over, divisor)
    found = _reduce(graph, "moments", view, dims, mean)
    if found is None:
        return None
    return [add_map(graph, "scaled", lambda x: x * (1 / divisor), [found[1]], variance), found[0]]


def _var_mean_of_rows(graph: Graph, variance: Tensor, mean: Tensor, view: View, over: tuple[int, ...], divisor: float):
    found = add_sum(graph, mean, view, over, scale=mean.numel() / view.layout.numel)
    if found is None:
        return None
    middle = _repeated(found, view.layout, over)
    type = Typed(_by_itself(view.layout), mean.dtype, mean.device)
    squares = add_typed_map(graph, "squared_difference", lambda x, m: (x - m) * (x - m), [view, middle], type)
    (made,) = _reduce(graph, "sum", squares, over, variance)
    return [add_map(graph, "scaled", lambda x: x * (1 / divisor), [made], variance), found]


RULES = {
    aten.sum.default: add_sum,
    aten.sum.dim_IntList: add_sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amax.default: _max,
    aten.var_mean.correction: _var_mean,
}
