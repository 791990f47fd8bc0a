"""Cast all parameters by one operator, and all gradients by another: under autocast each of them is cast by its own."""

from __future__ import annotations

from ..ir.graph import Call, Casts, ConvGrads, Graph, Map, Reduce, Value

FEWEST = 4  # casts of a pack: fewer are not worth a step of the plan


def pack_casts(graph: Graph) -> None:
    """Pack casts of inputs, and casts to results of the graph, that are not fused with what computes or reads them."""
    readers: dict[Value, list] = {}
    for operation in graph.operations:
        for view in operation.operands:
            readers.setdefault(view.value, []).append(operation)
    inputs = {value for value in graph.inputs}
    outputs = {view.value for view in graph.output_views()}
    first: list[Map] = []
    last: list[Map] = []
    for operation in graph.operations:
        if not _is_float_cast(operation):
            continue
        result, source = operation.results[0], operation.inputs[0].value
        result_readers = readers.get(result, [])
        if source in inputs and any(not isinstance(reader, (Map, Reduce)) for reader in result_readers):
            first.append(operation)
        elif result in outputs and not result_readers and isinstance(source.maker, (Call, ConvGrads)):
            last.append(operation)
    for casts, parts in ((first, True), (last, False)):
        by_kind: dict[tuple, list[Map]] = {}
        for cast in casts:
            result = cast.results[0]
            by_kind.setdefault((result.dtype, cast.inputs[0].value.dtype, result.device), []).append(cast)
        for pack in by_kind.values():
            if len(pack) >= FEWEST:
                _pack(graph, pack, parts)


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


def _pack(graph: Graph, casts: list[Map], parts: bool) -> None:
    """Replace casts by one Casts: at the place of the first one, or, for gradients, at the end of the graph."""
    replaced = set(casts)
    packed = Casts([cast.inputs[0] for cast in casts], "casts", parts)
    packed.results = [cast.results[0] for cast in casts]
    for result in packed.results:
        result.maker = packed
    at = graph.operations.index(casts[0]) if parts else len(graph.operations)
    graph.operations.insert(at, packed)
    graph.operations = [operation for operation in graph.operations if operation not in replaced]
