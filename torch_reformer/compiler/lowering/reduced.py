"""Reductions over any dimensions.

One kernel reduces rows, columns, planes (lowering/reductions.py) or everything. A few elements in other dimensions are
terms of a Map, which is fused with what reads it; more of them are summed through a map of their axis. Other
reductions are done in steps, in fp32 or fp64, the one that leaves the fewest elements first.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from ... import program as p
from ...program import Value as Expression
from ...program.interpreter import computed_type
from ...runtime.dtypes import FLOATS
from ..ir.axis_map import AxisMap
from ..ir.graph import Graph, Map, Reduce, Typed, View, is_cast
from ..ir.index_maps import without
from ..ir.iteration_space import has_space, reduces_rows
from ..ir.kernel_limits import LITTLE, SMALL
from ..ir.layout import Layout
from ..ir.terms import (
    MAX_OF_TERMS,
    MEAN_OF_TERMS,
    MOST_TERMS,
    PROD_OF_TERMS,
    SQUARES_OF_TERMS,
    SUM_OF_TERMS,
    Dims,
    count_of,
    has_kernel,
    squeezed,
    sum_of,
    terms,
)
from ..ir.through_maps import can_map
from . import indexed
from .pointwise import add_typed_map


class Step(NamedTuple):
    """Dimensions, and how they are reduced: by a "kernel", as "terms", or by the "taps" of a map."""

    dims: Dims
    way: str


def reduced(graph: Graph, kind: str, view: View, over: Dims) -> View | None:
    """Add a reduction.

    Args:
        kind: "sum", "max" or "prod".

    Returns:
        The result in fp32 or fp64, with one element in the reduced dimensions; the view itself if it has no more there.
        None if programs don't compute it.
    """
    if not _computes(view):
        return None
    found = steps(kind, view, over)
    for step in found or ():
        view = view and _WAYS[step.way](graph, kind, view, step.dims)
    return None if found is None else view


def statistics(graph: Graph, view: View, over: Dims) -> tuple[View, View] | None:
    """Add the means over these dimensions and the sums of squared differences from them, in fp32 or fp64, with one
    element in the reduced dimensions. None if programs don't compute them."""
    if not _computes(view):
        return None
    over = _longer(view.layout, over)
    layout = view.layout
    if over and reduces_rows(layout.numel, without(layout.packed, over)):
        return _statistics_by_sums(graph, view, over)
    if over and has_kernel(layout, over):
        return _moments(graph, view, over)
    if 1 < count_of(layout, over) <= MOST_TERMS:
        return _statistics_of_terms(graph, view, over)
    for first in _parts(layout, over):
        if has_kernel(layout, first):
            parts = statistics(graph, view, first)
            left = tuple(d for d in over if d not in first)
            return parts and _combined(graph, *parts, count_of(layout, first), left)
    return _statistics_by_sums(graph, view, over) if over else None


def mapped(graph: Graph, name: str, expression: Callable[..., Expression], views: Sequence[View], dtype) -> View | None:
    """Add a Map of views of equal sizes, whose result is packed in the first one's order of memory. None if no program
    can read them."""
    type = Typed(views[0].layout.packed, dtype, views[0].value.device)
    if not has_space(list(views), type.layout):
        return None
    return add_typed_map(graph, name, expression, list(views), type)


def wide(view: View) -> torch.dtype:
    """Data type in which programs reduce the view's elements."""
    return computed_type(view.value.dtype)


def dense_in_floats(graph: Graph, view: View) -> View | None:
    """The view, or a packed copy of it, that a kernel reads as a whole tensor; None if programs don't compute it."""
    return _dense(graph, view) if _computes(view) else None


def _computes(view: View) -> bool:
    dtype, is_on_cpu = view.value.dtype, view.value.device.type == "cpu"
    return dtype in FLOATS and view.layout.numel > 0 and (dtype != torch.float64 or is_on_cpu)


# The steps


def steps(kind: str, view: View, over: Dims) -> list[Step] | None:
    """Steps of a reduction, the first one first; None if there are none that kernels can take."""
    over = _longer(view.layout, over)
    if over and (_is_fused_as_terms(view, over) or _has_few_in_the_middle(view, over)):
        return [Step(over, "terms")]
    return _steps(kind, view.layout, over, can_map(view.value.device))


def _is_fused_as_terms(view: View, over: Dims) -> bool:
    """True for a few large terms in memory, of adjacent elements: what reads the result computes it, so that it is not
    stored. If a kernel computes the terms, it reduces them, too."""
    layout, count, maker = view.layout, count_of(view.layout, over), view.value.maker
    while is_cast(maker):
        maker = maker.inputs[0].value.maker
    if count > MOST_TERMS or layout.numel <= SMALL * count or isinstance(maker, (Map, Reduce)):
        return False
    if reduces_rows(layout.numel, without(layout.packed, over)):
        return False
    return has_space(terms(view, over), _without(layout, over))


def _has_few_in_the_middle(view: View, over: Dims) -> bool:
    """True for a few terms in all, of dimensions between others: readers of the result, if they have few elements, too,
    compute what the terms are made of and what is made of the sum, as a softmax."""
    layout = view.layout
    if count_of(layout, over) > MOST_TERMS or layout.numel > LITTLE or len(without(layout.packed, over)) < 2:
        return False
    return has_space(terms(view, over), _without(layout, over))


@functools.lru_cache(1 << 12)
def _steps(kind: str, layout: Layout, over: Dims, has_taps: bool) -> list[Step] | None:
    if not over:
        return []
    if has_kernel(layout, over):
        return [Step(over, "kernel")]
    if count_of(layout, over) <= MOST_TERMS:
        return [Step(over, "terms")]
    if len(over) == 1:
        few = layout.sizes[over[0]] <= indexed.MOST_TAPS_OF_AXIS
        return [Step(over, "taps")] if has_taps and few and kind == "sum" else None
    for first in _parts(layout, over):
        before = _steps(kind, layout, first, has_taps)
        left = _without(layout, first)
        after = before and _steps(kind, left, tuple(d for d in over if d not in first), has_taps)
        if before and after:
            return [*before, *after]
    return None


def _parts(layout: Layout, over: Dims) -> Iterator[Dims]:
    """Parts of these dimensions, those with the most elements first."""
    parts = [part for n in range(1, len(over)) for part in itertools.combinations(over, n)]
    return iter(sorted(parts, key=lambda part: -count_of(layout, part)))


def _longer(layout: Layout, over: Dims) -> Dims:
    """Those of the dimensions that have more than one element."""
    return tuple(d for d in over if layout.sizes[d] > 1)


def _without(layout: Layout, over: Dims) -> Layout:
    """Packed layout of the result of a reduction, with one element in the reduced dimensions."""
    sizes = tuple(1 if d in over else size for d, size in enumerate(layout.sizes))
    return Layout(sizes, layout.strides).packed


# One step


def _dense(graph: Graph, view: View) -> View | None:
    """The view, or its elements packed by a Map, where a program can read them; else None."""
    return view if view.is_full else mapped(graph, "clone", lambda x: x, [view], view.value.dtype)


def _by_kernel(graph: Graph, kind: str, view: View, over: Dims) -> View | None:
    if (view := _dense(graph, view)) is None:
        return None
    result = _without(view.layout, over)
    (value,) = graph.add(Reduce(kind, view, over), [Typed(squeezed(result, over), wide(view), view.value.device)])
    return View(value, result)


def _moments(graph: Graph, view: View, over: Dims) -> tuple[View, View] | None:
    if (view := _dense(graph, view)) is None:
        return None
    result = _without(view.layout, over)
    kept = squeezed(result, over)
    stacked = Layout((2, *kept.sizes), (result.numel, *kept.strides))
    (value,) = graph.add(Reduce("moments", view, over), [Typed(stacked, wide(view), view.value.device)])
    means, squares = (View(value, Layout(result.sizes, result.strides, i * result.numel)) for i in range(2))
    return means, squares


def _by_terms(graph: Graph, kind: str, view: View, over: Dims) -> View | None:
    if kind == "sum":
        return mapped(graph, SUM_OF_TERMS, sum_of, terms(view, over), wide(view))
    name, joined = {"max": (MAX_OF_TERMS, p.maximum), "prod": (PROD_OF_TERMS, operator.mul)}[kind]
    return mapped(graph, name, lambda *terms: functools.reduce(joined, terms), terms(view, over), wide(view))


def _by_taps(graph: Graph, kind: str, view: View, over: Dims) -> View | None:
    (d,) = over
    size = view.layout.sizes[d]
    type = Typed(_without(view.layout, over), wide(view), view.value.device)
    axis_map = AxisMap.of(size, [tuple((place, 1.0) for place in range(size))])
    return indexed.indexed(graph, "sum", type, view, {d: axis_map})


_WAYS = {"kernel": _by_kernel, "terms": _by_terms, "taps": _by_taps}


# Variances


def repeated(view: View, sizes: tuple[int, ...]) -> View:
    """The view, with the elements of dimensions of one element repeated."""
    layout = view.layout
    strides = [stride if n == size else 0 for n, size, stride in zip(layout.sizes, sizes, layout.strides, strict=True)]
    return View(view.value, Layout(sizes, tuple(strides), layout.offset))


def _mean(graph: Graph, view: View, over: Dims) -> View | None:
    sums = reduced(graph, "sum", view, over)
    factor = 1 / count_of(view.layout, over)
    return sums and mapped(graph, "scaled", lambda x: x * factor, [sums], wide(view))


def _statistics_by_sums(graph: Graph, view: View, over: Dims) -> tuple[View, View] | None:
    """Statistics by two sums, where the first is known while the elements are in registers."""
    if (means := _mean(graph, view, over)) is None:
        return None
    views = [view, repeated(means, view.layout.sizes)]
    squares = mapped(graph, "squared_difference", lambda x, m: (x - m) * (x - m), views, wide(view))
    sums = squares and reduced(graph, "sum", squares, over)
    return sums and (means, sums)


def _statistics_of_terms(graph: Graph, view: View, over: Dims) -> tuple[View, View] | None:
    views = terms(view, over)

    def squares(mean, *terms):
        return sum_of(*((x - mean) * (x - mean) for x in terms))

    means = mapped(graph, MEAN_OF_TERMS, lambda *terms: sum_of(*terms) * (1 / len(terms)), views, wide(view))
    sums = means and mapped(graph, SQUARES_OF_TERMS, squares, [means, *views], wide(view))
    return sums and (means, sums)


def _combined(graph: Graph, means: View, squares: View, count: int, over: Dims) -> tuple[View, View] | None:
    """Statistics of parts of `count` elements each, combined over further dimensions: Chan, Golub and LeVeque, Updating
    formulae and a pairwise algorithm for computing sample variances, 1979."""
    if (mean := _mean(graph, means, over)) is None:
        return None
    views = [squares, means, repeated(mean, means.layout.sizes)]
    around = mapped(graph, "squares_around", lambda s, m, mean: s + count * (m - mean) * (m - mean), views, wide(means))
    sums = around and reduced(graph, "sum", around, over)
    return sums and (mean, sums)
