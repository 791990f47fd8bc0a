"""Under autocast each parameter is cast before its use, and its gradient after: two operators cast all of them."""

from __future__ import annotations

from ..ir.graph import Call, Casts, ConvGrads, Graph, Map, Reduce, Value

FEWEST = 4  # casts that are worth a step of their own


def pack_casts(graph: Graph) -> None:
    readers: dict[Value, list] = {}
    for operation in graph.operations:
        for view in operation.operands:
            readers.setdefault(view.value, []).append(operation)
    given = {value for value in graph.inputs}
    outputs = {view.value for view in graph.output_views()}
    first: list[Map] = []
    last: list[Map] = []
    for operation in graph.operations:
        if not _is_cast(operation):
            continue
        result, source = operation.results[0], operation.inputs[0].value
        by = readers.get(result, [])
        if source in given and any(not isinstance(each, (Map, Reduce)) for each in by):
            first.append(operation)
        elif result in outputs and not by and isinstance(source.maker, (Call, ConvGrads)):
            last.append(operation)
    for casts, parts in ((first, True), (last, False)):
        by_kind: dict[tuple, list[Map]] = {}
        for cast in casts:
            result = cast.results[0]
            by_kind.setdefault((result.dtype, cast.inputs[0].value.dtype, result.device), []).append(cast)
        for found in by_kind.values():
            if len(found) >= FEWEST:
                _pack(graph, found, parts)


def _is_cast(operation) -> bool:
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
    gone = {each for each in casts}
    packed = Casts([cast.inputs[0] for cast in casts], "casts", parts)
    packed.results = [cast.results[0] for cast in casts]
    for result in packed.results:
        result.maker = packed
    at = graph.operations.index(casts[0]) if parts else len(graph.operations)
    graph.operations.insert(at, packed)
    graph.operations = [each for each in graph.operations if each not in gone]
