"""Compute values in the order of memory of the operations that read them.

PyTorch gives a concatenation, and what follows from it, the order of its dimensions. If the one operation that needs it
has another order, as beside heads of attention, one kernel can compute both only in that order."""

from __future__ import annotations

import functools

from ..ir.graph import Graph, Map, Operation, Random, Value, View
from ..ir.iteration_space import find_space, operand_maps
from ..ir.layout import Layout


def follow_readers(graph: Graph) -> None:
    """Change the layout of results of element-wise operations that only such operations of one other layout read."""
    readers = graph.readers()
    for operation in reversed(graph.operations):
        if not isinstance(operation, Map) or isinstance(operation, Random):
            continue
        (value,) = operation.results
        if (layout := _layout_of_readers(value, readers.get(value, []))) is not None:
            _change(operation, value, layout, readers[value])


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
