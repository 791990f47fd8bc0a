"""Read what an element-wise operation is computed from through the maps that its result is read through.

A cast before a roll becomes a roll before a cast: an operation whose result only operations read, through maps that
choose elements (ir/axis_map.py), needs not be stored then. Elements from nowhere must stay what they are, so maps with
such elements change places only with casts, and with products where they are 0."""

from __future__ import annotations

from ..ir.graph import Graph, Indexed, Map, Operation, Random, Reduce, Typed, Value, View, is_cast
from ..ir.layout import Layout
from ..ir.other_memory import layout_in

_MOST_READERS = 2  # of a product, which each of them computes again


def map_operands(graph: Graph) -> None:
    """Let maps of axes and element-wise operations change places."""
    readers = graph.readers()
    before, graph.operations = graph.operations, []
    for operation in before:
        if isinstance(operation, Indexed) and (operands := _operands(operation, readers)) is not None:
            (result,), maker = operation.results, operation.inputs[0].value.maker
            mapped = []
            for i, operand in enumerate(operands):
                fill = 0.0 if i else operation.fill  # -0.0 * 0.0 is -0.0
                indexed = Indexed([operand], operation.name, operation.expression, operation.maps, fill)
                mapped += graph.add(indexed, [Typed(result.layout, operand.value.dtype, result.device)])
            moved = Map([View(value, result.layout) for value in mapped], maker.name, maker.expression)
            moved.rounds = maker.rounds
            moved.results, result.maker = [result], moved
            operation = moved
        graph.operations.append(operation)


def _operands(operation: Indexed, readers: dict[Value, list[Operation | None]]) -> list[View] | None:
    """The views of the maker's operands that lie as what the operation reads; None if they can't change places."""
    (view,) = operation.inputs
    maker = view.value.maker
    if not operation.only_chooses or not isinstance(maker, Map) or isinstance(maker, (Indexed, Random)):
        return None
    has_gaps = any(axis_map is not None and axis_map.has_gaps for axis_map in operation.maps)
    if len(maker.inputs) == 1:
        found = _operand_of_one(operation, maker, has_gaps) if readers.get(view.value, []) == [operation] else None
        return None if found is None else [found]
    if maker.name != "mul" or len(maker.inputs) != 2 or (has_gaps and operation.fill):
        return None
    reading = readers.get(view.value, [])
    if len(reading) > _MOST_READERS or not all(isinstance(each, Indexed) and each.only_chooses for each in reading):
        return None
    if any(operand.value.dtype != view.value.dtype for operand in maker.inputs):
        return None
    if any(isinstance(operand.value.maker, (Map, Reduce)) for operand in maker.inputs):
        return None  # they would have to be stored; their kernel can store the product where the maps have it
    operands = [_part_of(operand, view) for operand in maker.inputs]
    return None if None in operands else operands


def _operand_of_one(operation: Indexed, maker: Map, has_gaps: bool) -> View | None:
    (view,), (operand,) = operation.inputs, maker.inputs
    if has_gaps and not (is_cast(maker) and operand.value.dtype.is_floating_point):
        return None
    whole = view.value.layout
    if (operand.layout.sizes, operand.layout.strides) != (whole.sizes, whole.strides):
        return None
    if not operand.value.dtype.is_floating_point and view.value.dtype != operand.value.dtype:
        return None
    layout = view.layout
    return View(operand.value, Layout(layout.sizes, layout.strides, layout.offset + operand.layout.offset))


def _part_of(operand: View, view: View) -> View | None:
    """The elements of an operand that a view of the result is computed from; None if they are no view of its own."""
    layout = layout_in(view.layout, view.value.layout, operand.layout)
    return None if layout is None else View(operand.value, layout)
