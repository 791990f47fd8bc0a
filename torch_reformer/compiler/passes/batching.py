"""Batch tensors: make them parts of one value, which one operation reads instead of many.

Nothing is copied if they are adjacent in one value. If one expression computes each of them, one operation computes all
at once. Others are concatenated.
"""

from __future__ import annotations

import torch

from ...runtime.dtypes import FLOATS
from ..ir.expressions import expression_of
from ..ir.graph import Call, Graph, Indexed, Map, Operation, Random, Typed, Value, View
from ..ir.index_maps import index_map_of
from ..ir.iteration_space import find_space
from ..ir.layout import Layout

_cat = torch.ops.aten.cat.default

# Bytes that are copied in less time than another call takes to start, by type of device.
_OF_CALL = {"cuda": 1 << 22, "cpu": 1 << 16}


def of_call(device: torch.device) -> int:
    """Bytes that a device moves in the time of one call."""
    return _OF_CALL.get(device.type, 0)


def add_at(graph: Graph, place: int, operation: Operation, type: Typed) -> Value:
    """Insert an operation with one result at this place of the graph, and return the result."""
    (result,) = graph.add(operation, [type])
    graph.operations.insert(place, graph.operations.pop())
    return result


def place_of(graph: Graph, operation: Operation) -> int:
    """Index of an operation in the graph."""
    return next(place for place, other in enumerate(graph.operations) if other is operation)


def place_after(graph: Graph, views: list[View]) -> int:
    """First place in the graph at which every view has been computed."""
    makers = {view.value.maker for view in views if view.value.maker is not None}
    return 1 + max((place for place, operation in enumerate(graph.operations) if operation in makers), default=-1)


def place_after_join(graph: Graph, views: list[View], dim: int) -> int:
    """First place in the graph at which every view has been computed, and their concatenation if it exists already."""
    _, joined = graph.joins.get(_key(views, dim), ((), None))
    return place_after(graph, [*views, *([View(joined, joined.layout)] if joined else [])])


def cost_of_joining(graph: Graph, views: list[View], dim: int) -> int:
    """Bytes that joined() moves; its call counts as the bytes of a call's time."""
    if _in_place(views, dim) or _key(views, dim) in graph.joins:
        return 0
    return of_call(views[0].value.device) + 2 * sum(view.elements * view.value.dtype.itemsize for view in views)


def joined(graph: Graph, views: list[View], dim: int) -> View:
    """View of the concatenation of views in dimension `dim`; in the others they have equal sizes. It is only read."""
    sizes = views[0].layout.sizes
    whole = (*sizes[:dim], sum(view.layout.sizes[dim] for view in views), *sizes[dim + 1 :])
    if (layout := _in_place(views, dim)) is not None:
        return View(views[0].value, Layout(whole, layout.strides, layout.offset))
    key = _key(views, dim)
    if key not in graph.joins:
        if all(view.layout.sizes == sizes for view in views):
            value = stacked(graph, views, dim)
        else:
            type = Typed(Layout.row_major(whole), views[0].value.dtype, views[0].value.device)
            value = add_at(graph, place_after(graph, views), Call(_cat, (views, dim), {}), type)
        graph.joins[key] = views, value
    return View(graph.joins[key][1], Layout.row_major(whole))


def stacked(graph: Graph, views: list[View], dim: int) -> Value:
    """A new value that stacks views of equal sizes, with a new dimension before dimension `dim`."""
    value, sizes = views[0].value, views[0].layout.sizes
    type = Typed(Layout.row_major((*sizes[:dim], len(views), *sizes[dim:])), value.dtype, value.device)
    copy = _as_map(graph, views, dim, type.layout)
    if copy is not None:
        return add_at(graph, place_after(graph, copy.inputs), copy, type)

    def unsqueezed(view: View) -> View:
        layout = view.layout
        strides = (*layout.strides[:dim], 1, *layout.strides[dim:])
        return View(view.value, Layout((*sizes[:dim], 1, *sizes[dim:]), strides, layout.offset))

    return add_at(graph, place_after(graph, views), Call(_cat, (list(map(unsqueezed, views)), dim), {}), type)


def _key(views: list[View], dim: int) -> tuple:
    return dim, tuple((view.value, view.layout) for view in views)


def _in_place(views: list[View], dim: int) -> Layout | None:
    """Layout of the first view if each view follows the one before it in memory, in this dimension; else None."""
    first, stack = views[0].layout, _regular(views, dim)
    return first if stack and stack.strides[dim] == first.sizes[dim] * first.strides[dim] else None


def _regular(views: list[View], dim: int) -> Layout | None:
    """Layout of all views stacked, with a new dimension `dim`, if they are equidistant in one value; else None."""
    first = views[0].layout
    step = views[1].layout.offset - first.offset if len(views) > 1 else 0
    if step < 0 or any(
        (view.value, view.layout) != (views[0].value, Layout(first.sizes, first.strides, first.offset + i * step))
        for i, view in enumerate(views)
    ):
        return None
    sizes = (*first.sizes[:dim], len(views), *first.sizes[dim:])
    return Layout(sizes, (*first.strides[:dim], step, *first.strides[dim:]), first.offset)


def _as_map(graph: Graph, views: list[View], dim: int, layout: Layout) -> Map | None:
    """One Map that computes the stacked views, or copies them out of one value; None if there is none, as for whole
    numbers."""
    if views[0].value.dtype not in (*FLOATS, torch.bool):
        return None
    if (stack := _regular(views, dim)) is not None:
        operation = Map([View(views[0].value, stack)], "clone", lambda x: x)
    else:
        makers = [view.value.maker for view in views]
        if not all(
            isinstance(maker, Map) and not isinstance(maker, (Indexed, Random)) and maker.inputs for maker in makers
        ):
            return None
        if any(view.layout != view.value.layout or not view.layout.is_dense for view in views):
            return None
        if len({(len(maker.inputs), maker.results[0].dtype, expression_of(maker)) for maker in makers}) > 1:
            return None
        operands = [[maker.inputs[i] for maker in makers] for i in range(len(makers[0].inputs))]
        inputs = [_at_once(graph, of_makers, dim, views[0].value.dtype.itemsize) for of_makers in operands]
        if None in inputs:
            return None
        operation = Map(inputs, makers[0].name, makers[0].expression)
    index_maps = {index_map_of(layout, view.layout) for view in operation.inputs}
    return None if find_space(layout.numel, index_maps, set()) is None else operation


def _at_once(graph: Graph, views: list[View], dim: int, widest: int) -> View | None:
    """One view of the stacked operands; they are copied only if their data type has fewer bytes than `widest`."""
    if (stack := _regular(views, dim)) is not None:
        return View(views[0].value, stack)
    if views[0].value.dtype.itemsize >= widest or len({(view.value.dtype, view.layout.sizes) for view in views}) > 1:
        return None
    value = stacked(graph, views, dim)
    return View(value, value.layout)
