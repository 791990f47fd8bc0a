"""Drop casts to a narrower data type and back: the value stays as wide as it was computed.

Gradients of biases under autocast then need no kernel of their own.
"""

from __future__ import annotations

from ..ir.graph import Graph, Operation, Value, View, is_removable_cast, substituted


def drop_round_trips(graph: Graph) -> None:
    """Replace results of widening casts by what the narrowing cast before them read."""
    outputs = {view.value for view in graph.output_views()}
    instead: dict[Value, View] = {}  # a cast's result -> a view, whose value is not replaced itself
    for operation in graph.operations:
        source = _source(operation)
        if source is None:
            continue
        source, result = substituted(source, instead), operation.results[0]
        # Two results of the graph share no memory.
        if not {source.value, result} <= outputs:
            instead[result] = source
            if result in outputs:
                outputs.add(source.value)
    graph.substitute(instead)


def _source(operation: Operation) -> View | None:
    """The operand that was rounded before a cast, if it has the data type and the order of memory of the cast's result;
    else None."""
    if not is_removable_cast(operation) or not is_removable_cast(maker := operation.inputs[0].value.maker):
        return None
    (result,), (source,) = operation.results, maker.inputs
    if source.value.dtype != result.dtype or source.value.maker is None or source.value.device != result.device:
        return None
    rounded, read = maker.results[0].layout, operation.inputs[0].layout
    same = rounded.matches(source.layout) and result.layout.matches(read) and operation.inputs[0].is_full
    return source if same and rounded.is_dense and result.layout.is_dense else None
