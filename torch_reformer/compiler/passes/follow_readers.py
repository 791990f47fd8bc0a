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

_contiguous = torch.ops.reformer._contiguous.default


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
        if (layout := _layout_of_readers(value, reading)) is not None:
            _change(operation, value, layout, reading)
        elif (layout := _layout_of_copies(value, reading)) is not None and _computes(operation, layout):
            value.layout = layout
            instead |= {copy.results[0]: View(value, copy.results[0].layout) for copy in reading}
    graph.substitute(instead)


def _layout_of_readers(value: Value, readers: list[Operation | None]) -> Layout | None:
    """The value in the order of memory of the operations that read it; None if they have no other, or several."""
    if value.memory is not None or not value.layout.is_row_major or not readers:
        return None
    if any(not isinstance(reader, Map) or isinstance(reader, Random) for reader in readers):
        return None
    layouts = set()
    for reader in readers:
        views = [view for view in reader.inputs if view.value is value]
        if any(not view.layout.is_row_major or view.layout.numel != value.layout.numel for view in views):
            return None
        layout = reader.results[0].layout
        layouts |= {_split(layout, value.layout.sizes) if layout.sizes == view.layout.sizes else None for view in views}
    return layouts.pop() if len(layouts) == 1 else None


def _layout_of_copies(value: Value, readers: list[Operation | None]) -> Layout | None:
    """The value in the order of memory of its copies; None if something else reads it, or if they have several."""
    if value.memory is not None or not readers:
        return None
    layouts = set()
    for reader in readers:
        if not isinstance(reader, Call) or reader.operator is not _contiguous or not reader.operands[0].is_full:
            return None
        copied, result = reader.operands[0].layout, reader.results[0].layout
        stride_of = dict(zip(copied.strides, result.strides, strict=True))
        axes = zip(copied.sizes, copied.strides, strict=True)
        found = on_axes(axes, zip(value.layout.sizes, value.layout.strides, strict=True), 0)
        if found is None or any(len(parts) > 1 for parts in found[1]):
            return None
        strides = [sum(stride_of[axis] * each for axis, _, each in parts) for parts in found[1]]
        layouts.add(Layout(value.layout.sizes, tuple(strides)))
    return layouts.pop() if len(layouts) == 1 else None


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


def _split(layout: Layout, sizes: tuple[int, ...]) -> Layout | None:
    """The layout with each of its dimensions as one or more of these sizes, if it is dense and in another order of
    memory than theirs; else None."""
    if layout.is_row_major or not layout.is_dense:
        return None
    remaining, strides = list(zip(layout.sizes, layout.strides, strict=True)), []
    for size in reversed(sizes):
        while remaining and remaining[-1][0] == 1 and size > 1:
            remaining.pop()
        if size == 1:
            strides.append(0)
            continue
        if not remaining or remaining[-1][0] % size:
            return None
        count, stride = remaining.pop()
        strides.append(stride)
        remaining.append((count // size, stride * size))
    return Layout(sizes, tuple(reversed(strides)))


def _change(operation: Map, value: Value, layout: Layout, readers: list[Operation | None]) -> None:
    """Give the value this layout if a program can compute it so."""
    before, value.layout = value.layout, layout
    if find_space(layout.numel, {index_map for _, index_map in operand_maps(operation)}, set()) is None:
        value.layout = before
        return
    for reader in readers:
        new_view = View(value, reader.results[0].layout)
        reader.change_operands(functools.partial(_replaced, value, new_view))


def _replaced(value: Value, new_view: View, view: View) -> View:
    return new_view if view.value is value else view
