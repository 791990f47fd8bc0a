"""Compute values in the order of memory of the operations that read them.

PyTorch gives a concatenation, and what follows from it, the order of its dimensions. If the one operation that needs it
has another order, as beside heads of attention, one kernel can compute both only in that order. And what only copies in
another order read is computed in that order, if the elements that are read then stay adjacent, so nothing is copied."""

from __future__ import annotations

import functools

import torch

from ..ir.access import Access
from ..ir.digits import on_axes
from ..ir.graph import Call, Graph, Map, Operation, Random, Value, View
from ..ir.index_maps import operand_maps
from ..ir.iteration_space import find_space
from ..ir.layout import Layout
from ..ir.other_memory import strides_between

_cat, _contiguous = torch.ops.aten.cat.default, torch.ops.reformer._contiguous.default
Readers = dict[Value, list[Operation | None]]


def follow_readers(graph: Graph) -> None:
    """Change the layout of results of element-wise operations that only such operations, or copies, of one other layout
    read."""
    readers = graph.readers()
    instead: dict[Value, View] = {}
    for operation in reversed(graph.operations):
        if not isinstance(operation, Map) or isinstance(operation, Random):
            continue
        (value,) = operation.results
        reading = readers.get(value, [])
        if (layout := _layout_of_readers(operation, value, readers)) is not None:
            _change(operation, value, layout, reading)
        elif (layout := _layout_of_copies(value, reading)) is not None and _computes(operation, layout):
            value.layout = layout
            instead |= {copy.results[0]: View(value, copy.results[0].layout) for copy in reading}
    graph.substitute(instead)


def _layout_of_readers(operation: Map, value: Value, readers: Readers) -> Layout | None:
    """The value in the order of memory of the operations that read it; None if they have no other, or several. What
    permutes its dimensions may as well be written by the kernel that computes it, so it is followed only to tensors
    that have that order."""
    reading = readers.get(value, [])
    if value.memory is not None or not value.layout.is_row_major or not reading:
        return None
    layouts, permutes = set(), False
    for reader in reading:
        for view in reader.operands if reader is not None else ():
            if view.value is value:
                order = _order_of(reader, view)
                layouts.add(None if order is None else _in_order(value, view.layout, order))
                permutes = permutes or not view.layout.is_row_major
    if None in reading or len(layouts) > 1 or (layout := layouts.pop()) is None or layout.matches(value.layout):
        return None
    return None if permutes and not _reads_in_order(operation, layout, readers) else layout


def _order_of(reader: Operation, view: View) -> Layout | None:
    """Dense layout in whose order a Map or a concatenation goes through a view of a whole value; None for others."""
    if not view.is_full or not reader.results or not reader.results[0].layout.is_dense:
        return None
    layout = reader.results[0].layout
    if isinstance(reader, Call) and reader.operator is _cat:
        return Layout.row_major(view.layout.sizes) if layout.is_row_major else None
    is_map = isinstance(reader, Map) and not isinstance(reader, Random)
    return layout if is_map and layout.sizes == view.layout.sizes else None


def _reads_in_order(operation: Map, layout: Layout, readers: Readers) -> bool:
    """True if the operation reads a tensor in this order of memory, and in others only what follows it."""
    full = [view for view in operation.inputs if view.is_full]
    others = [view.value for view in full if not view.layout.matches(layout)]
    return len(others) < len(full) and all(
        isinstance(other.maker, Map) and readers[other] == [operation] for other in others
    )


def _layout_of_copies(value: Value, readers: list[Operation | None]) -> Layout | None:
    """The value in the order of memory of its copies; None if something else reads it, or if they have several."""
    if value.memory is not None or not readers:
        return None
    layouts = set()
    for reader in readers:
        if not isinstance(reader, Call) or reader.operator is not _contiguous or not reader.operands[0].is_full:
            return None
        layouts.add(_in_order(value, reader.operands[0].layout, reader.results[0].layout))
    return layouts.pop() if len(layouts) == 1 else None


def _in_order(value: Value, view: Layout, result: Layout) -> Layout | None:
    """The value in the order of memory in which a result has the elements of a view of it; None if a dimension of the
    value is not made of whole dimensions of the view."""
    stride_of = strides_between(view, result)
    axes = zip(view.sizes, view.strides, strict=True)
    found = on_axes(axes, zip(value.layout.sizes, value.layout.strides, strict=True), 0)
    if found is None or any(len(parts) > 1 for parts in found[1]):
        return None
    strides = [sum(stride_of[axis] * each for axis, _, each in parts) for parts in found[1]]
    return Layout(value.layout.sizes, tuple(strides))


def _computes(operation: Map, layout: Layout) -> bool:
    """True if a program computes the operation's result in this layout, and reads adjacent elements."""
    (value,) = operation.results
    before, value.layout = value.layout, layout
    index_maps = {index_map for _, index_map in operand_maps(operation)}
    value.layout = before
    terms = [term for index_map in index_maps if isinstance(index_map, Access) for term in index_map.terms]
    if any(term.stride != 1 for term in terms if term.digits and term.digits[0][0] == 1):
        return False
    return find_space(layout.numel, index_maps, set()) is not None


def _change(operation: Map, value: Value, layout: Layout, readers: list[Operation | None]) -> None:
    """Give the value this layout if a program can compute it so."""
    before, value.layout = value.layout, layout
    if find_space(layout.numel, {index_map for _, index_map in operand_maps(operation)}, set()) is None:
        value.layout = before
        return
    for reader in readers:
        reader.change_operands(functools.partial(_in_new_order, value, reader))


def _in_new_order(value: Value, reader: Operation, view: View) -> View:
    """The operand of a reader, of a value that lies in the order in which it is read."""
    return View(value, _order_of(reader, view)) if view.value is value else view
