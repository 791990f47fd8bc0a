"""What is rounded to a narrow data type only to be widened again stays as wide as it was computed: gradients of biases
under autocast need no kernel of their own so."""

from __future__ import annotations

from ..ir.graph import Graph, Value, View, is_removable_cast
from ..ir.layout import Layout


def drop_round_trips(graph: Graph) -> None:
    outputs = {view.value for view in graph.output_views()}
    instead: dict[Value, View] = {}  # of a cast's result: a view whose own value has no other in its place

    def wide(view: View) -> View:
        source, own = instead.get(view.value), view.layout
        if source is None:
            return view
        return View(source.value, Layout(own.sizes, own.strides, own.offset + source.layout.offset))

    for operation in graph.operations:
        source = _source(operation)
        if source is None:
            continue
        source, result = wide(source), operation.results[0]
        # Two results of the graph share no memory.
        if not {source.value, result} <= outputs:
            instead[result] = source
            if result in outputs:
                outputs.add(source.value)
    for operation in graph.operations:
        operation.change_operands(wide)
    graph.outputs = [wide(each) if isinstance(each, View) else each for each in graph.outputs]


def _source(operation) -> View | None:
    """What a cast's operand was rounded from, if it is of the cast's own data type and lies in the same order."""
    if not is_removable_cast(operation) or not is_removable_cast(maker := operation.inputs[0].value.maker):
        return None
    (result,), (source,) = operation.results, maker.inputs
    if source.value.dtype != result.dtype or source.value.maker is None or source.value.device != result.device:
        return None
    rounded, read = maker.results[0].layout, operation.inputs[0].layout
    same = rounded.matches(source.layout) and result.layout.matches(read) and operation.inputs[0].is_full
    return source if same and rounded.is_dense and result.layout.is_dense else None
