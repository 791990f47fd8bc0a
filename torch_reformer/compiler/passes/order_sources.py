"""Copy what is read through maps to the order of memory of the results, where elements of a row would lie apart.

A pad of channels_last images, whose result PyTorch gives in the order of its dimensions, would otherwise read one
element of each 32 bytes. This comes after passes that change the order of results."""

from __future__ import annotations

from ..ir.contiguous import Copies, in_order
from ..ir.graph import Graph, Indexed, Map, Operation, Random, Value, View
from ..ir.layout import Layout

_MOST_LARGER = 4  # elements of the source for each of the result: a copy moves all of them


def order_sources(graph: Graph) -> None:
    """Copy operands that have adjacent elements in another dimension than the results, if all readers of the results
    have these in the same order."""
    readers = graph.readers()
    known: Copies = {}
    before, graph.operations = graph.operations, []
    for operation in before:
        if isinstance(operation, Indexed) and _is_apart(operation):
            (view,), (result,) = operation.inputs, operation.results
            if all(_has_order(reader, result) for reader in readers.get(result, [])):
                order = Layout(view.layout.sizes, result.layout.strides).packed
                operation.inputs = [in_order(graph, view, order, known)]
        graph.operations.append(operation)


def _is_apart(operation: Indexed) -> bool:
    """True if elements of the result that follow one another lie apart in the source, where others are adjacent."""
    (view,), (result,) = operation.inputs, operation.results
    source, layout = view.layout, result.layout
    if view.elements > _MOST_LARGER * layout.numel:
        return False
    dims = [d for d, size in enumerate(layout.sizes) if size > 1]
    inner = min(dims, key=lambda d: layout.strides[d])
    others = (source.strides[d] == 1 and source.sizes[d] > 1 for d in dims if d != inner)
    return source.strides[inner] > 1 and any(others)


def _has_order(reader: Operation | None, value: Value) -> bool:
    """True if the operation computes elements in the value's order of memory, or stores the value."""
    if not isinstance(reader, Map) or isinstance(reader, Random):
        return True
    (result,) = reader.results
    views = [view for view in reader.inputs if view.value is value]
    return all(_is_same(view, value) for view in views) and result.layout.matches(value.layout)


def _is_same(view: View, value: Value) -> bool:
    return view.layout.matches(value.layout) and view.layout.offset == value.layout.offset
