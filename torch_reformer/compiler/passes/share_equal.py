"""What is computed twice of the same tensors is one: a norm's factors, say, which forward and backward write in other
ways. A copy in the same order of memory is what it is a copy of."""

from __future__ import annotations

from ...program import Program, full, store
from ..ir.graph import Graph, Map, Operation, Random, Reduce, Value, View
from ..ir.iteration_space import operand_maps, without
from .batching import expression_of


def share_equal(graph: Graph) -> None:
    written = {value for operation in graph.operations for value in operation.writes}
    outputs = {view.value for view in graph.output_views()}
    given = {value for value in graph.inputs}
    known: dict[tuple, list[Operation]] = {}
    instead: dict[Value, Value] = {}  # of a result

    def first(view: View) -> View:
        return View(instead.get(view.value, view.value), view.layout)

    def same_as(operation: Operation) -> Value | None:
        """What is there already and holds the same."""
        if not isinstance(operation, (Map, Reduce)) or isinstance(operation, Random):
            return None
        if not written.isdisjoint((*operation.results, *(view.value for view in operation.operands))):
            return None
        if _is_copy(operation):
            return operation.inputs[0].value
        before = known.setdefault(_key(operation), [])
        before.append(operation)
        return next((each.results[0] for each in before[:-1] if _is_equal(each, operation)), None)

    left = []
    for operation in graph.operations:
        operation.change_operands(first)
        same = same_as(operation)
        # A result of the graph shares memory with no other, and with nothing that is given.
        if same is None or (operation.results[0] in outputs and same in outputs | given):
            left.append(operation)
            continue
        instead[operation.results[0]] = same
        if operation.results[0] in outputs:
            outputs.add(same)
    graph.operations = left
    graph.outputs = [first(each) if isinstance(each, View) else each for each in graph.outputs]


def _is_copy(operation: Map | Reduce) -> bool:
    if not isinstance(operation, Map) or len(operation.inputs) != 1:
        return False
    (view,), (result,) = operation.inputs, operation.results
    if not view.is_full or view.value.dtype != result.dtype or view.value.device != result.device:
        return False
    return result.layout.matches(view.layout) and expression_of(operation) == str(Program(store(full("t0"))))


def _key(operation: Map | Reduce) -> tuple:
    """What it is, and of which elements of memory, whatever sizes they are looked at with."""
    (result,) = operation.results
    if isinstance(operation, Reduce):
        layout = operation.input.layout
        return operation.kind, operation.input.value, layout.numel, without(layout, operation.over)
    read = [(view.value, view.layout.offset, index_map) for view, index_map in operand_maps(operation)]
    return operation.name, tuple(read), result.layout.numel, result.dtype, result.device


def _is_equal(one: Map | Reduce, other: Map | Reduce) -> bool:
    """Whether operations of the same key are the same: names of expressions do not tell all numbers in them."""
    return isinstance(one, Reduce) or expression_of(one) == expression_of(other)
