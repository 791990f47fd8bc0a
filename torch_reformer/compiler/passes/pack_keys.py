"""Draw the keys of all dropouts by one call."""

from __future__ import annotations

from ..ir.custom_ops import draw_key
from ..ir.graph import Call, Graph


def pack_keys(graph: Graph) -> None:
    """Replace draws of one key each, between the same limits, by one draw at the place of the first."""
    packs: dict[tuple, list[Call]] = {}
    for operation in graph.operations:
        if isinstance(operation, Call) and operation.operator is draw_key and operation.args[2] == [1]:
            packs.setdefault((operation.args[:2], operation.results[0].device), []).append(operation)
    for (limits, _), draws in packs.items():
        if len(draws) == 1:
            continue
        packed = Call(draw_key, (*limits, [len(draws), 1]), draws[0].kwargs, parts=True)
        packed.results = [draw.results[0] for draw in draws]
        for result in packed.results:
            result.maker = packed
        graph.operations[graph.operations.index(draws[0])] = packed
        replaced = set(draws)
        graph.operations = [operation for operation in graph.operations if operation not in replaced]
