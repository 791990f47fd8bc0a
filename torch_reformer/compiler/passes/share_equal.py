"""What is computed twice of the same tensors is one: a norm's factors, say, which forward and backward write in other
ways."""

from __future__ import annotations

from ...program import Program, full, store
from ..ir import Graph, Map, Operation, Random, Reduce, Value, View
from ..space import operand_digits, without


def share_equal(graph: Graph) -> None:
    written = {id(value) for operation in graph.operations for value in operation.writes}
    outputs = {id(view.value) for view in graph.output_views()}
    known: dict[tuple, list[Operation]] = {}
    instead: dict[int, Value] = {}  # of a result (id)

    def first(view: View) -> View:
        return View(instead.get(id(view.value), view.value), view.layout)

    left = []
    for operation in graph.operations:
        operation.change_operands(first)
        same = None
        if isinstance(operation, (Map, Reduce)) and not isinstance(operation, Random):
            if written.isdisjoint(map(id, (*operation.results, *(view.value for view in operation.operands)))):
                before = known.setdefault(_key(operation), [])
                same = next((each for each in before if _is_equal(each, operation)), None)
                before.append(operation)
        # Two results of the graph share no memory.
        if same is None or (results := {id(each.results[0]) for each in (same, operation)}) <= outputs:
            left.append(operation)
            continue
        (result,) = operation.results
        instead[id(result)] = same.results[0]
        if results & outputs:
            outputs.add(id(same.results[0]))
    graph.operations = left
    graph.outputs = [first(each) if isinstance(each, View) else each for each in graph.outputs]


def _key(operation: Map | Reduce) -> tuple:
    """What it is, and of which elements of memory, whatever sizes they are looked at with."""
    (result,) = operation.results
    if isinstance(operation, Reduce):
        layout = operation.input.layout
        return operation.kind, id(operation.input.value), layout.numel, without(layout, operation.over)
    read = [(id(view.value), view.layout.offset, digits) for view, digits in operand_digits(operation)]
    return operation.name, tuple(read), result.layout.numel, result.dtype, result.device


def _is_equal(one: Map | Reduce, other: Map | Reduce) -> bool:
    """Whether operations of the same key are the same: names of expressions do not tell all numbers in them."""
    return isinstance(one, Reduce) or _expression(one) == _expression(other)


def _expression(operation: Map) -> str:
    return str(Program(store(operation.expression(*(full(f"t{i}") for i in range(len(operation.inputs)))))))
