"""Common subexpressions: compute only once what is computed twice of the same tensors.

A norm's factors are an example, which forward and backward write in different ways. A copy in the same order of memory
is replaced by its source.

Parts of a training step do not share what they compute of products, element by element: a backward that computes it
again lets the product's kernel compute it in the forward, too, and store less (fusion/anchor_products.py).
"""

from __future__ import annotations

from ...program import Program, full, store
from ..ir.expressions import expression_of
from ..ir.graph import Call, Casts, Graph, Indexed, Map, Operation, Random, Reduce, Value, View, substituted
from ..ir.index_maps import operand_maps, without
from ..ir.product import PRODUCTS


def share_equal(graph: Graph) -> None:
    """Replace results of Maps and Reduces by earlier values that are equal."""
    written = {value for operation in graph.operations for value in operation.writes}
    outputs = {view.value for view in graph.output_views()}
    inputs = {value for value in graph.inputs}
    known: dict[tuple, list[Operation]] = {}
    given, of_products = set(inputs), set[Value]()
    instead: dict[Value, View] = {}

    def equal_value(operation: Operation) -> Value | None:
        """An earlier value that is equal to the operation's result."""
        if not isinstance(operation, (Map, Reduce)) or isinstance(operation, Random):
            return None
        if not written.isdisjoint((*operation.results, *(view.value for view in operation.operands))):
            return None
        if _is_copy(operation):
            return operation.inputs[0].value
        part = operation.part if operation.results[0] in of_products else None
        before = known.setdefault((_key(operation), part), [])
        before.append(operation)
        return next((other.results[0] for other in before[:-1] if _is_equal(other, operation)), None)

    for operation in graph.operations:
        operation.change_operands(lambda view: substituted(view, instead))
        _note(operation, given, of_products)
        value = equal_value(operation)
        # A result of the graph shares memory with no other result, and with no input.
        if value is None or (operation.results[0] in outputs and value in outputs | inputs):
            continue
        instead[operation.results[0]] = View(value, value.layout)
        if operation.results[0] in outputs:
            outputs.add(value)
    graph.substitute(instead)


def _note(operation: Operation, given: set[Value], of_products: set[Value]) -> None:
    """Add results to the values that are computed of inputs, and to those of products, element by element."""
    read = {view.value for view in operation.operands}
    if isinstance(operation, Call) and operation.operator in PRODUCTS:
        of_products.update(operation.results)
    elif isinstance(operation, (Map, Casts)) and read <= given | of_products:
        (given if read <= given else of_products).update(operation.results)


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
    return operation.name, tuple(read), result.layout.numel, result.dtype, result.device


def _is_equal(one: Map | Reduce, other: Map | Reduce) -> bool:
    """True if operations of one key are equal: names of Maps omit some constants of their expressions."""
    return isinstance(one, Reduce) or expression_of(one) == expression_of(other)
