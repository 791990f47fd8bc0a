"""Read what an element-wise operation is computed from through the maps that its result is read through.

A cast before a roll becomes a roll before a cast: an operation whose result only one operation reads, through maps that
choose elements (ir/axis_map.py), needs not be stored then. Elements from nowhere must stay what they are, so maps with
such elements change places with casts only."""

from __future__ import annotations

from ..ir.graph import Graph, Indexed, Map, Operation, Random, Typed, Value, View, is_cast
from ..ir.layout import Layout


def map_operands(graph: Graph) -> None:
    """Let maps of axes and element-wise operations of one tensor change places."""
    readers = graph.readers()
    before, graph.operations = graph.operations, []
    for operation in before:
        if isinstance(operation, Indexed) and (operand := _operand(operation, readers)) is not None:
            (result,), maker = operation.results, operation.inputs[0].value.maker
            indexed = Indexed([operand], operation.name, operation.expression, operation.maps, operation.fill)
            (mapped,) = graph.add(indexed, [Typed(result.layout, operand.value.dtype, result.device)])
            moved = Map([View(mapped, result.layout)], maker.name, maker.expression)
            moved.rounds = maker.rounds
            moved.results, result.maker = [result], moved
            operation = moved
        graph.operations.append(operation)


def _operand(operation: Indexed, readers: dict[Value, list[Operation | None]]) -> View | None:
    """The view of the maker's operand that lies as what the operation reads; None if they can't change places."""
    (view,) = operation.inputs
    maker = view.value.maker
    if not operation.only_chooses or not isinstance(maker, Map) or isinstance(maker, (Indexed, Random)):
        return None
    if len(maker.inputs) != 1 or readers.get(view.value, []) != [operation]:
        return None
    has_gaps = any(axis_map is not None and axis_map.has_gaps for axis_map in operation.maps)
    if has_gaps and not (is_cast(maker) and maker.inputs[0].value.dtype.is_floating_point):
        return None
    (operand,) = maker.inputs
    whole = view.value.layout
    if (operand.layout.sizes, operand.layout.strides) != (whole.sizes, whole.strides):
        return None
    if not operand.value.dtype.is_floating_point and view.value.dtype != operand.value.dtype:
        return None
    layout = view.layout
    return View(operand.value, Layout(layout.sizes, layout.strides, layout.offset + operand.layout.offset))
