"""Sums, means, maxima, minima, truths and variances as Reduces.

The mean of a row is known while a kernel has the row's elements in registers, so the variance of a row is a sum of
squared differences from it; other variances are moments, which one pass computes.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from ...program import Value as Expression
from ...runtime.dtypes import FLOATS, NARROW
from ..ir.fake_tensors import layout_of
from ..ir.graph import Graph, Reduce, Typed, View
from ..ir.iteration_space import find_space, reduces_rows, without
from ..ir.layout import Layout
from .pointwise import add_map, add_typed_map, computes

aten = torch.ops.aten
_LEAST_OF_IMAGE = 512  # adjacent elements of an image that is reduced in part: as many as a block has threads


def _reduce(graph: Graph, kind: str, view: View, dims, like: Tensor) -> list[View] | None:
    """Add a Reduce in fp32 or fp64.

    Args:
        kind: "sum", "max" or "moments".
        like: a fake tensor with the result's sizes and strides.

    Returns:
        The result; of moments, the means and the sums of squared differences. None if no program computes it.
    """
    dtype, layout = view.value.dtype, view.layout
    if dtype not in FLOATS or layout.numel == 0 or (dtype == torch.float64 and view.value.device.type != "cpu"):
        return None
    over = _over(layout, dims)
    if not view.is_full and _by_itself(layout).is_dense:  # a dense part of a value, which is read in place
        layout = _by_itself(layout)
        view = add_typed_map(graph, "clone", lambda x: x, [view], Typed(layout, dtype, view.value.device))
    if not layout.is_dense or not view.is_full or not over:
        return None
    index_map = without(layout, over)
    if len(index_map) > 1 and index_map[-1][0] < _LEAST_OF_IMAGE:
        return None
    if find_space(layout.numel, {((1, layout.numel),)}, {index_map}) is None:
        return None
    kept = [d for d in range(len(layout.sizes)) if d not in over]
    strides, expected = dict.fromkeys(kept, 0), 1
    for d in sorted(kept, key=lambda d: (layout.strides[d], -d)):
        strides[d] = expected
        expected *= layout.sizes[d]
    result = Layout(tuple(layout.sizes[d] for d in kept), tuple(strides.values()))
    like_layout = layout_of(like)
    if len(like_layout.sizes) == len(layout.sizes):  # keepdim: reduced dimensions have one element
        like_layout = Layout(result.sizes, tuple(like_layout.strides[d] for d in kept))
    if not like_layout.matches(result):
        return None
    count = 2 if kind == "moments" else 1
    stacked = Layout((2, *result.sizes), (expected, *result.strides)) if count == 2 else result
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    (value,) = graph.add(Reduce(kind, view, over), [(stacked, wide, view.value.device)])
    return [View(value, layout_of(like, i * expected)) for i in range(count)]


def _by_itself(layout: Layout) -> Layout:
    """Layout of a part of a tensor, as a tensor in memory of its own."""
    return dataclasses.replace(layout, offset=0)


def _of_one_element(view: View, dims, like: Tensor) -> list[View] | None:
    """The operand as its own sum if each sum has one term, else None."""
    layout, result = view.layout, layout_of(like)
    if layout.numel != result.numel or not layout.numel or not computes([view], like):
        return None
    over = _over(layout, dims) if len(result.sizes) < len(layout.sizes) else ()
    kept = [d for d in range(len(layout.sizes)) if d not in over]
    sizes, strides = (tuple(numbers[d] for d in kept) for numbers in (layout.sizes, layout.strides))
    if not result.is_dense or not result.matches(Layout(sizes, strides)):
        return None
    return [View(view.value, Layout(sizes, strides, layout.offset))]


def _over(layout: Layout, dims) -> tuple[int, ...]:
    """Dimensions of a reduction, counted from the first one; all of them if none are given."""
    return tuple(d % len(layout.sizes) for d in (dims or range(len(layout.sizes)))) if layout.sizes else ()


def _repeated(reduced: View, layout: Layout, over: tuple[int, ...]) -> View:
    """Result of a reduction over these dimensions of a tensor, broadcast to the tensor's sizes."""
    kept = [d for d in range(len(layout.sizes)) if d not in over]
    strides = reduced.layout.strides
    stride_of = dict(
        zip(kept, [strides[d] for d in kept] if len(strides) == len(layout.sizes) else strides, strict=True)
    )
    broadcast = tuple(stride_of.get(d, 0) for d in range(len(layout.sizes)))
    return View(reduced.value, Layout(layout.sizes, broadcast, reduced.layout.offset))


def add_sum(graph: Graph, value, view, dims=None, keepdim=False, dtype=None, scale: float = 1.0):
    """Rule of aten.sum: the sum times `scale`, or None. value: the fake result."""
    if dtype not in (None, value.dtype) or value.dtype not in FLOATS:
        return None
    if torch.float64 in (view.value.dtype, value.dtype) and view.value.dtype not in (value.dtype, torch.bool):
        return None
    if view.value.dtype == torch.bool and _by_itself(view.layout).is_dense and view.layout.numel:
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        type = Typed(_by_itself(view.layout), wide, view.value.device)
        view = add_typed_map(graph, "_to_copy", lambda x: x, [view], type)
    sums = _of_one_element(view, dims, value) or _reduce(graph, "sum", view, dims, value)
    if sums is None:
        return None
    if scale == 1 and sums[0].value.dtype == value.dtype and sums[0].value is not view.value:
        return sums[0]
    return add_map(graph, "scaled" if scale != 1 else "cast", lambda x: x * scale if scale != 1 else x, sums, value)


def _mean(graph: Graph, value, view, dims=None, keepdim=False, dtype=None):
    count = view.layout.numel // max(value.numel(), 1)
    return add_sum(graph, value, view, dims, keepdim, dtype, scale=1 / count) if count else None


def _max(graph: Graph, value, view, dims=(), keepdim=False):
    maxima = _reduce(graph, "max", view, dims, value)
    if maxima is None:
        return None
    return maxima[0] if maxima[0].value.dtype == value.dtype else add_map(graph, "cast", lambda x: x, maxima, value)


def _min(graph: Graph, value, view, dims=(), keepdim=False):
    """A minimum is the negative of the maximum of the negatives, for NaN, too."""
    if view.value.dtype not in FLOATS or not _by_itself(view.layout).is_dense:
        return None
    type = Typed(_by_itself(view.layout), view.value.dtype, view.value.device)
    maxima = _reduce(graph, "max", add_typed_map(graph, "neg", lambda x: -x, [view], type), dims, value)
    return None if maxima is None else add_map(graph, "neg", lambda x: -x, maxima, value)


def _any(graph: Graph, value, view, dims=(), keepdim=False, inverted=False):
    """True where one element is not 0; NaN is true. inverted: where all are."""
    layout = _by_itself(view.layout)
    if view.value.dtype not in (*FLOATS, torch.bool) or not layout.is_dense:
        return None
    wide = torch.float64 if view.value.dtype == torch.float64 else torch.float32
    dims = (dims,) if isinstance(dims, int) else dims
    type, op = Typed(layout, wide, view.value.device), "eq" if inverted else "ne"
    truths = add_typed_map(graph, f"{op}[0]", lambda x: Expression(op, x, 0.0), [view], type)
    maxima = _reduce(graph, "max", truths, dims, value)
    return None if maxima is None else add_map(graph, f"{op}[0]", lambda x: Expression(op, x, 0.0), maxima, value)


def _var_mean(graph: Graph, value, view, dims=None, correction=None, keepdim=False):
    variance, mean = value
    count = view.layout.numel // max(mean.numel(), 1)
    divisor = count - (1 if correction is None else correction)
    if divisor <= 0 or mean.dtype != (torch.float64 if view.value.dtype == torch.float64 else torch.float32):
        return None
    layout, over = _by_itself(view.layout), _over(view.layout, dims)
    if layout.is_dense and reduces_rows(layout.numel, without(layout, over)):
        return _var_mean_of_rows(graph, variance, mean, view, over, divisor)
    moments = _reduce(graph, "moments", view, dims, mean)
    if moments is None:
        return None
    return [add_map(graph, "scaled", lambda x: x * (1 / divisor), [moments[1]], variance), moments[0]]


def _var(graph: Graph, value, view, dims=None, correction=None, keepdim=False):
    with value.fake_mode:
        wide = value.float() if value.dtype in NARROW else value
    found = _var_mean(graph, (wide, wide), view, dims, correction, keepdim)
    if found is None or wide is value:
        return found and found[0]
    return add_map(graph, "cast", lambda x: x, found[:1], value)


def _var_mean_of_rows(graph: Graph, variance: Tensor, mean: Tensor, view: View, over: tuple[int, ...], divisor: float):
    means = add_sum(graph, mean, view, over, scale=mean.numel() / view.layout.numel)
    if means is None:
        return None
    broadcast = _repeated(means, view.layout, over)
    type = Typed(_by_itself(view.layout), mean.dtype, mean.device)
    squares = add_typed_map(graph, "squared_difference", lambda x, m: (x - m) * (x - m), [view, broadcast], type)
    (sums,) = _reduce(graph, "sum", squares, over, variance)
    return [add_map(graph, "scaled", lambda x: x * (1 / divisor), [sums], variance), means]


RULES = {
    aten.sum.default: add_sum,
    aten.sum.dim_IntList: add_sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amax.default: _max,
    aten.amin.default: _min,
    aten.max.default: _max,
    aten.min.default: _min,
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), functools.partial(_any, inverted=True)),
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
}
