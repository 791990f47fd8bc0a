"""Sums, means, maxima, minima, products, truths and variances as Reduces, and as Maps of few terms (reduced.py).

The mean of a row is known while a kernel has the row's elements in registers, so the variance of a row is a sum of
squared differences from it; other variances are moments, which one pass computes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...program import Value as Expression
from ...program.interpreter import computed_type
from ...runtime.dtypes import FLOATS, NARROW
from ..ir.contiguous import dense
from ..ir.fake_tensors import layout_of
from ..ir.graph import Graph, View
from ..ir.layout import Layout
from ..ir.sized_tensor import SizedTensor
from .pointwise import TYPES, add_map
from .reduced import mapped, reduced, statistics, wide
from .whole_numbers import MOST, WHOLE, note_range, range_of

aten = torch.ops.aten


def _over(layout: Layout, dims) -> tuple[int, ...]:
    """Dimensions of a reduction, counted from the first one; all of them if none are given."""
    dims = (dims,) if isinstance(dims, int) else dims
    return tuple(d % len(layout.sizes) for d in (dims or range(len(layout.sizes)))) if layout.sizes else ()


def result_of(
    graph: Graph,
    found: View,
    like: Tensor,
    over: tuple[int, ...],
    operand: View,
    name: str = "cast",
    expression: Callable[..., Expression] = lambda x: x,
) -> View | None:
    """The result of a rule: an expression of what was reduced, with the sizes, strides and data type of `like`.

    Args:
        operand: what was reduced, which the result is no view of.
        name, expression: of a Map, which is left out where it only copies.
    """
    layout = layout_of(like)
    if len(layout.sizes) < len(found.layout.sizes):
        kept = [d for d in range(len(found.layout.sizes)) if d not in over]
        sizes, strides = (tuple(numbers[d] for d in kept) for numbers in (found.layout.sizes, found.layout.strides))
        found = View(found.value, Layout(sizes, strides, found.layout.offset))
    if name != "cast" or found.value.dtype != like.dtype or found.value is operand.value:
        found = mapped(graph, name, expression, [found], like.dtype)
    if found is None:
        return None
    found = dense(graph, found, layout)
    return View(found.value, Layout(layout.sizes, layout.strides, found.layout.offset))


def add_sum(graph: Graph, value, view, dims=None, keepdim=False, dtype=None, scale: float = 1.0):
    """Rule of aten.sum: the sum times `scale`, or None. value: the fake result."""
    if dtype not in (None, value.dtype) or not view.layout.numel:
        return None
    if value.dtype in WHOLE:
        return _count(graph, value, view, dims) if scale == 1 else None
    over, operand = _over(view.layout, dims), in_floats(graph, value, view)
    sums = operand and reduced(graph, "sum", operand, over)
    if sums is None:
        return None
    if scale == 1:
        return result_of(graph, sums, value, over, operand)
    return result_of(graph, sums, value, over, operand, "scaled", lambda x: x * scale)


# The name and expression of a product of whole numbers as one of them: its zeros have no sign.
COUNTED = "count", lambda x: x + 0.0


def in_floats(graph: Graph, value: Tensor, view: View) -> View | None:
    """The view, or a mask's numbers, which programs reduce or scan for a result of the data type of `value`; None if
    they would compute in another data type than PyTorch."""
    if value.dtype not in FLOATS:
        return None
    if torch.float64 in (view.value.dtype, value.dtype) and view.value.dtype not in (value.dtype, torch.bool):
        return None
    if value.dtype in NARROW and view.value.dtype not in (value.dtype, torch.bool):
        return None  # PyTorch rounds the elements before it computes
    if view.value.dtype != torch.bool:
        return view
    return mapped(graph, "_to_copy", lambda x: x, [view], computed_type(value.dtype))


def _count(graph: Graph, value: Tensor, view: View, dims) -> View | None:
    """A sum of truths or of small whole numbers that fp32 holds, as all that are added up on the way."""
    bounds = range_of(graph, view)
    terms = view.layout.numel // max(value.numel(), 1)
    least, most = bounds.least * terms, bounds.most * terms
    if view.value.dtype in FLOATS or not max(-least, most) <= MOST:
        return None
    over, operand = _over(view.layout, dims), mapped(graph, "_to_copy", lambda x: x, [view], torch.float32)
    sums = operand and reduced(graph, "sum", operand, over)
    result = sums and result_of(graph, sums, value, over, operand, "count", lambda x: x)
    if result is not None:
        note_range(graph, result, min(least, 0), max(most, 0))
    return result


def _mean(graph: Graph, value, view, dims=None, keepdim=False, dtype=None):
    count = view.layout.numel // max(value.numel(), 1)
    return add_sum(graph, value, view, dims, keepdim, dtype, scale=1 / count) if count else None


def _max(graph: Graph, value, view, dims=(), keepdim=False):
    over = _over(view.layout, dims)
    maxima = reduced(graph, "max", view, over)
    return maxima and result_of(graph, maxima, value, over, view)


def _min(graph: Graph, value, view, dims=(), keepdim=False):
    """A minimum is the negative of the maximum of the negatives, for NaN, too."""
    if view.value.dtype not in FLOATS or not view.layout.numel:
        return None
    over, negative = _over(view.layout, dims), mapped(graph, "neg", lambda x: -x, [view], view.value.dtype)
    maxima = negative and reduced(graph, "max", negative, over)
    return maxima and result_of(graph, maxima, value, over, view, "neg", lambda x: -x)


def product_range(graph: Graph, view: View, count: int) -> tuple[float, float] | None:
    """The least and the most that a product of up to so many of the view's whole numbers can be; None if it may be
    more than fp32 holds."""
    bounds = range_of(graph, view)
    if type(count) is not int:
        return None  # it depends on symbols
    most = max(-bounds.least, bounds.most, 1)
    if most > 1 and not count * math.log2(most) <= math.log2(MOST):
        return None
    most = most**count
    return (0 if bounds.least >= 0 else -most), most


def _prod(graph: Graph, value, view, dim=None, keepdim=False, dtype=None):
    over = _over(view.layout, dim)
    if value.dtype in WHOLE and view.value.dtype not in FLOATS and view.layout.numel:
        bounds = product_range(graph, view, math.prod(view.layout.sizes[d] for d in over))
        operand = bounds and mapped(graph, "_to_copy", lambda x: x, [view], torch.float32)
    else:
        bounds = None
        operand = in_floats(graph, value, view)
    products = operand and reduced(graph, "prod", operand, over)
    result = products and result_of(graph, products, value, over, operand, *(COUNTED if bounds else ()))
    if result and bounds:
        note_range(graph, result, *bounds)
    return result


def _any(graph: Graph, value, view, dims=(), keepdim=False, inverted=False):
    """True where one element is not 0; NaN is true. inverted: where all are."""
    if view.value.dtype not in TYPES or not view.layout.numel:
        return None
    over, op = _over(view.layout, dims), "eq" if inverted else "ne"

    def compared(x: Expression) -> Expression:
        return Expression(op, x, 0.0)

    truths = mapped(graph, f"{op}[0]", compared, [view], wide(view))
    maxima = truths and reduced(graph, "max", truths, over)
    return maxima and result_of(graph, maxima, value, over, view, f"{op}[0]", compared)


def _var_mean(graph: Graph, value, view, dims=None, correction=None, keepdim=False):
    variance, mean = value
    count = view.layout.numel // max(mean.numel(), 1)
    divisor = count - (1 if correction is None else correction)
    if divisor <= 0 or mean.dtype != wide(view):
        return None
    over = _over(view.layout, dims)
    if (found := statistics(graph, view, over)) is None:
        return None
    means, squares = found
    return [
        result_of(graph, squares, variance, over, view, "scaled", lambda x: x * (1 / divisor)),
        result_of(graph, means, mean, over, view),
    ]


def _var(graph: Graph, value, view, dims=None, correction=None, keepdim=False):
    wider = value
    if value.dtype in NARROW:
        wider = SizedTensor(value, value.shape, value.stride(), dtype=torch.float32)
    found = _var_mean(graph, (wider, wider), view, dims, correction, keepdim)
    if found is None or wider is value:
        return found and found[0]
    return add_map(graph, "cast", lambda x: x, found[:1], value)


RULES = {
    aten.sum.default: add_sum,
    aten.sum.dim_IntList: add_sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.prod.default: lambda graph, value, view, dtype=None: _prod(graph, value, view),
    aten.prod.dim_int: _prod,
    aten.amax.default: _max,
    aten.amin.default: _min,
    aten.max.default: _max,
    aten.min.default: _min,
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), functools.partial(_any, inverted=True)),
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
}
