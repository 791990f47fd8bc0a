"""Common subexpressions: compute only once what is computed twice of the same tensors.

A norm's factors are an example, which forward and backward write in different ways. A copy in the same order of memory
is replaced by its source.

The parts of a training step share reductions only: what a backward computes again element by element, it would
otherwise read, and the forward would store (joint_graph/partition.py chooses).

This comes before passes that place results side by side in one memory: copies into it are not redundant.
"""

from __future__ import annotations

from ...program import Program, full, store
from ..ir.expressions import expression_of
from ..ir.graph import Graph, Indexed, Map, Operation, Random, Reduce, Value, View, substituted
from ..ir.index_maps import operand_maps, without


def share_equal(graph: Graph) -> None:
    """Replace results of Maps and Reduces by earlier values that are equal."""
    written = {value for operation in graph.operations for value in operation.writes}
    outputs = {view.value for view in graph.output_views()}
    inputs = {value for value in graph.inputs}
    known: dict[tuple, list[Operation]] = {}
    instead: dict[Value, View] = {}

    def equal_value(operation: Operation) -> Value | None:
        """An earlier value that is equal to the operation's result."""
        if not isinstance(operation, (Map, Reduce)) or isinstance(operation, Random):
            return None
        if not written.isdisjoint((*operation.results, *(view.value for view in operation.operands))):
            return None
        if _is_copy(operation):
            return operation.inputs[0].value
        before = known.setdefault(_key(operation), [])
        before.append(operation)
        return next((other.results[0] for other in before[:-1] if _is_equal(other, operation)), None)

    for operation in graph.operations:
        operation.change_operands(lambda view: substituted(view, instead))
        value = equal_value(operation)
        # A result of the graph shares memory with no other result, and with no input.
        if value is None or (operation.results[0] in outputs and value in outputs | inputs):
            continue
        instead[operation.results[0]] = View(value, value.layout)
        if operation.results[0] in outputs:
            outputs.add(value)
    graph.substitute(instead)


def _is_copy(operation: Map | Reduce) -> bool:
    """True if the operation copies its operand in the same order of memory."""
    if not isinstance(operation, Map) or isinstance(operation, Indexed) or len(operation.inputs) != 1:
        return False
    (view,), (result,) = operation.inputs, operation.results
    if not view.is_full or view.value.dtype != result.dtype or view.value.device != result.device:
        return False
    return result.layout.matches(view.layout) and expression_of(operation) == str(Program(store(full("t0"))))


def _key(operation: Map | Reduce) -> tuple:
    """Kind of the operation, and the elements of memory that it reads, whatever the sizes of the views; equal for equal
    operations."""
    (result,) = operation.results
    if isinstance(operation, Reduce):
        layout = operation.input.layout
        return operation.kind, operation.input.value, layout.numel, without(layout, operation.over)
    read = [(view.value, view.layout.offset, index_map) for view, index_map in operand_maps(operation)]
    return operation.name, tuple(read), result.layout.numel, result.dtype, result.device, operation.part


def _is_equal(one: Map | Reduce, other: Map | Reduce) -> bool:
    """True if operations of one key are equal: names of Maps omit some constants of their expressions."""
    return isinstance(one, Reduce) or expression_of(one) == expression_of(other)
