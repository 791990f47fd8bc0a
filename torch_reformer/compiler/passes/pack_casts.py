"""Cast all parameters by one operator, and all gradients by another: under autocast each of them is cast by its own.
Gradients are results of the graph, or operands of one call, which updates all parameters.
Such an operator also writes what is saved as one tensor (joint_graph/pack_saved.py), and parameters that a product has
side by side (pre_grad/join_projections.py)."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.concats import is_concat, pieces
from ..ir.custom_ops import FEWEST_PACKED, pack, packed_starts
from ..ir.graph import Call, Casts, ConvGrads, Graph, Map, Operation, Reduce, Value, View
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
    """Replace casts by one Casts, at the place of the first one. Those that are saved as one tensor come first, and
    those that are concatenated follow each other."""
    at, members = graph.operations.index(casts[0]), set(casts)
    parts = {call: makers for call in graph.operations if (makers := _parts_of(call)) and members.issuperset(makers)}
    memories: dict[Call, list[Map]] = {}
    for call in saved:
        makers = [cast for view in call.operands for cast in parts.get(view.value.maker, [view.value.maker])]
        if memories or not members.issuperset(makers) or len({*makers}) < len(makers):
            continue  # one is saved of a kind
        if _starts(makers) == _starts_of_operands(call, parts):
            memories[call] = makers
    order = list(dict.fromkeys(cast for of in (*memories.values(), *parts.values(), casts) for cast in of))
    place = {cast: i for i, cast in enumerate(order)}
    starts = _starts(order)
    for call, makers in parts.items():
        ends = [starts[cast] + cast.results[0].layout.numel for cast in makers]
        if [starts[cast] for cast in makers[1:]] == ends[:-1]:
            memories[call] = makers
    spans = [(place[makers[0]], len(makers)) for makers in memories.values()]
    graph.operations = [operation for operation in graph.operations if operation not in memories]
    packed = Casts([cast.inputs[0] for cast in order], "casts", True, spans)
    _pack(graph, order, packed, at, [call.results[0] for call in memories])


def _starts(casts: list[Map]) -> dict[Map, int]:
    """Where the results of casts begin that are packed."""
    return dict(zip(casts, packed_starts(cast.results[0].layout.numel for cast in casts), strict=False))


def _starts_of_operands(call: Call, parts: dict[Call, list[Map]]) -> dict[Map, int]:
    """Where each cast must begin that is an operand of what is saved, or a part of one."""
    found = {}
    for view, start in zip(call.operands, packed_starts(view.elements for view in call.operands), strict=False):
        for cast in parts.get(view.value.maker, [view.value.maker]):
            found[cast] = start
            start += cast.results[0].layout.numel
    return found


def _parts_of(call: Operation) -> list[Operation | None] | None:
    """The makers of the parts of a concatenation that lie one after the other in its result; None for others."""
    if not is_concat(call) or not call.results[0].layout.is_row_major:
        return None
    found = pieces(View(call.results[0], call.results[0].layout))
    if found is None or found[1] or len({view.value for view in found[0]}) < len(found[0]):
        return None
    if not all(view.is_full and view.layout.is_row_major for view in found[0]):
        return None
    return [view.value.maker for view in found[0]]


def _copy(graph: Graph, saved: Call) -> None:
    """Let one Casts copy what is saved as one tensor."""
    copies = Casts(saved.operands, "casts", True, [(0, len(saved.operands))])
    layouts = [Layout(view.layout.sizes, view.layout.strides) for view in saved.operands]  # each begins its part
    values = [view.value for view in saved.operands]
    parts = [graph.value(at, each.dtype, each.device) for at, each in zip(layouts, values, strict=True)]
    copies.results = [*parts, *saved.results]
    for result in copies.results:
        result.maker = copies
    graph.operations[graph.operations.index(saved)] = copies


def _pack(graph: Graph, casts: list[Map], packed: Casts, at: int, memory: Iterable[Value] = ()) -> None:
    """Replace casts by one Casts at a place of the graph. memory: its further results."""
    packed.results = [*(cast.results[0] for cast in casts), *memory]
    for result in packed.results:
        result.maker = packed
    graph.operations.insert(at, packed)
    replaced = set(casts)
    graph.operations = [operation for operation in graph.operations if operation not in replaced]
