"""Tensors of equal sizes as parts of one, which one operation reads in the place of many: where they are, if they lie
there one after the other; computed at once, if one expression gives each; else copied."""

from __future__ import annotations

import torch

from ...program import Program, full, store
from ..ir.graph import Call, Graph, Map, Operation, Random, Typed, Value, View
from ..ir.iteration_space import find_space, index_map_of
from ..ir.layout import Layout

_cat = torch.ops.aten.cat.default

# Bytes that are copied in less time than another call takes to start, by types of devices.
_OF_CALL = {"cuda": 1 << 22, "cpu": 1 << 16}


def of_call(device: torch.device) -> int:
    """Bytes that a device moves in the time that a call takes."""
    return _OF_CALL.get(device.type, 0)


def expression_of(operation: Map) -> str:
    """What it computes: names of expressions do not tell all numbers in them."""
    return str(Program(store(operation.expression(*(full(f"t{i}") for i in range(len(operation.inputs)))))))


def add_at(graph: Graph, place: int, operation: Operation, type: Typed) -> Value:
    """Adds an operation there, not at the end."""
    (made,) = graph.add(operation, [type])
    graph.operations.insert(place, graph.operations.pop())
    return made


def place_of(graph: Graph, operation: Operation) -> int:
    return next(place for place, each in enumerate(graph.operations) if each is operation)


def place_after(graph: Graph, views: list[View]) -> int:
    """Where all of them are there."""
    makers = {view.value.maker for view in views if view.value.maker is not None}
    return 1 + max((place for place, each in enumerate(graph.operations) if each in makers), default=-1)


def replace(graph: Graph, instead: dict[Value, View]) -> None:
    """Has views of these dense values look at others, where the same elements lie in the same order."""

    def changed(view: View) -> View:
        found = instead.get(view.value)
        if found is None:
            return view
        own = view.layout
        return View(found.value, Layout(own.sizes, own.strides, own.offset + found.layout.offset))

    for operation in graph.operations:
        operation.change_operands(changed)
    graph.outputs = [changed(each) if isinstance(each, View) else each for each in graph.outputs]


def place_after_join(graph: Graph, views: list[View], dim: int) -> int:
    """Where all of them are there, and what they are parts of, if it is made already."""
    _, made = graph.joins.get(_key(views, dim), ((), None))
    return place_after(graph, [*views, *([View(made, made.layout)] if made else [])])


def cost_of_joining(graph: Graph, views: list[View], dim: int) -> int:
    """Bytes that are moved for it, with the call as those that are moved in its time."""
    if _in_place(views, dim) or _key(views, dim) in graph.joins:
        return 0
    return of_call(views[0].value.device) + 2 * sum(view.elements * view.value.dtype.itemsize for view in views)


def joined(graph: Graph, views: list[View], dim: int) -> View:
    """Views one after the other in this dimension, to be read; in the others they have the same sizes."""
    sizes = views[0].layout.sizes
    whole = (*sizes[:dim], sum(view.layout.sizes[dim] for view in views), *sizes[dim + 1 :])
    if (found := _in_place(views, dim)) is not None:
        return View(views[0].value, Layout(whole, found.strides, found.offset))
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
    """Views of equal sizes in memory of their own, with their number as another dimension, before this one."""
    value, sizes = views[0].value, views[0].layout.sizes
    type = Typed(Layout.row_major((*sizes[:dim], len(views), *sizes[dim:])), value.dtype, value.device)
    copy = _as_map(graph, views, dim, type.layout)
    if copy is not None:
        return add_at(graph, place_after(graph, copy.inputs), copy, type)

    def apart(view: View) -> View:
        own = view.layout
        strides = (*own.strides[:dim], 1, *own.strides[dim:])
        return View(view.value, Layout((*sizes[:dim], 1, *sizes[dim:]), strides, own.offset))

    return add_at(graph, place_after(graph, views), Call(_cat, (list(map(apart, views)), dim), {}), type)


def _key(views: list[View], dim: int) -> tuple:
    return dim, tuple((view.value, view.layout) for view in views)


def _in_place(views: list[View], dim: int) -> Layout | None:
    """One view's layout, if the others follow it in this dimension."""
    first, found = views[0].layout, _regular(views, dim)
    return first if found and found.strides[dim] == first.sizes[dim] * first.strides[dim] else None


def _regular(views: list[View], dim: int) -> Layout | None:
    """All of them as one view, if they are of one value and as far from one another, with their number as another
    dimension."""
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
    """One operation that computes all of them, or copies them from where they are."""
    if (own := _regular(views, dim)) is not None:
        found = Map([View(views[0].value, own)], "clone", lambda x: x)
    else:
        makers = [view.value.maker for view in views]
        if not all(isinstance(each, Map) and not isinstance(each, Random) and each.inputs for each in makers):
            return None
        if any(view.layout != view.value.layout or not view.layout.is_dense for view in views):
            return None
        if len({(len(each.inputs), each.results[0].dtype, expression_of(each)) for each in makers}) > 1:
            return None
        operands = [[each.inputs[i] for each in makers] for i in range(len(makers[0].inputs))]
        inputs = [_at_once(graph, each, dim, views[0].value.dtype.itemsize) for each in operands]
        if None in inputs:
            return None
        found = Map(inputs, makers[0].name, makers[0].expression)
    index_map = {index_map_of(layout, view.layout) for view in found.inputs}
    return None if find_space(layout.numel, index_map, set()) is None else found


def _at_once(graph: Graph, views: list[View], dim: int, widest: int) -> View | None:
    """Operands as one view, copied where they are narrower than this."""
    if (own := _regular(views, dim)) is not None:
        return View(views[0].value, own)
    if views[0].value.dtype.itemsize >= widest or len({(each.value.dtype, each.layout.sizes) for each in views}) > 1:
        return None
    value = stacked(graph, views, dim)
    return View(value, value.layout)
