"""Cast all parameters by one operator, and all gradients by another: under autocast each of them is cast by its own.
Gradients are results of the graph, or operands of one call, which updates all parameters.
Such an operator also writes what is saved as one tensor (joint_graph/pack_saved.py)."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.custom_ops import FEWEST_PACKED, pack
from ..ir.graph import Call, Casts, ConvGrads, Graph, Map, Reduce, Value
from ..ir.layout import Layout


def pack_casts(graph: Graph) -> None:
    """Pack casts of inputs, and casts to results of the graph or for one call, that are not fused with what computes or
    reads them."""
    readers: dict[Value, list] = {}
    for operation in graph.operations:
        for view in operation.operands:
            readers.setdefault(view.value, []).append(operation)
    inputs = {value for value in graph.inputs}
    outputs = {view.value for view in graph.output_views()}
    first: list[Map] = []
    last: dict[Call | None, list[Map]] = {}  # by the call that reads them; None: results of the graph
    for operation in graph.operations:
        if not _is_float_cast(operation):
            continue
        result, source = operation.results[0], operation.inputs[0].value
        result_readers = readers.get(result, [])
        if source in inputs and any(not isinstance(reader, (Map, Reduce)) for reader in result_readers):
            first.append(operation)
        elif isinstance(source.maker, (Call, ConvGrads)):
            if result in outputs and not result_readers:
                last.setdefault(None, []).append(operation)
            elif result not in outputs and len(result_readers) == 1 and isinstance(result_readers[0], Call):
                last.setdefault(result_readers[0], []).append(operation)
    saved = [each for each in graph.operations if isinstance(each, Call) and each.operator is pack]
    for kind in _by_kind(first).values():
        if len(kind) >= FEWEST_PACKED:
            _pack_parameters(graph, kind, saved)
    for reader, casts in last.items():
        for kind in _by_kind(casts).values():
            if len(kind) >= FEWEST_PACKED:
                place = graph.operations.index(reader) if reader else len(graph.operations)
                _pack(graph, kind, Casts([cast.inputs[0] for cast in kind], "casts", False), place)
    for call in saved:
        if call in graph.operations:
            _copy(graph, call)


def _by_kind(casts: list[Map]) -> dict[tuple, list[Map]]:
    kinds: dict[tuple, list[Map]] = {}
    for cast in casts:
        result = cast.results[0]
        kinds.setdefault((result.dtype, cast.inputs[0].value.dtype, result.device), []).append(cast)
    return kinds


def _is_float_cast(operation) -> bool:
    """True for a cast between floating-point types in the same order of memory."""
    if not isinstance(operation, Map) or operation.name != "_to_copy":
        return False
    (view,), result = operation.inputs, operation.results[0]
    return (
        view.value.dtype != result.dtype
        and view.value.dtype.is_floating_point
        and result.dtype.is_floating_point
        and view.layout.matches(result.layout)
        and result.layout.is_dense
    )


def _pack_parameters(graph: Graph, casts: list[Map], saved: list[Call]) -> None:
    """Replace casts by one Casts, at the place of the first one. Those that are saved as one tensor come first."""
    at, memory = graph.operations.index(casts[0]), []
    for call in saved:
        makers = [view.value.maker for view in call.operands]
        if set(makers) <= set(casts) and not memory:
            casts = [*makers, *(cast for cast in casts if cast not in set(makers))]
            memory = call.results
            graph.operations.remove(call)
    _pack(graph, casts, Casts([cast.inputs[0] for cast in casts], "casts", True), at, memory)


def _copy(graph: Graph, saved: Call) -> None:
    """Let one Casts copy what is saved as one tensor."""
    copies = Casts(saved.operands, "casts", True)
    layouts = [Layout(view.layout.sizes, view.layout.strides) for view in saved.operands]  # each begins its part
    values = [view.value for view in saved.operands]
    parts = [graph.value(at, each.dtype, each.device) for at, each in zip(layouts, values, strict=True)]
    copies.results = [*parts, *saved.results]
    for result in copies.results:
        result.maker = copies
    graph.operations[graph.operations.index(saved)] = copies


def _pack(graph: Graph, casts: list[Map], packed: Casts, at: int, memory: Iterable[Value] = ()) -> None:
    """Replace casts by one Casts at a place of the graph. memory: its last result."""
    packed.results = [*(cast.results[0] for cast in casts), *memory]
    for result in packed.results:
        result.maker = packed
    graph.operations.insert(at, packed)
    replaced = set(casts)
    graph.operations = [operation for operation in graph.operations if operation not in replaced]
