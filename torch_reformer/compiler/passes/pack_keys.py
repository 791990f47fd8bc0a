"""Each dropout draws a key: one call draws all of them."""

from __future__ import annotations

from ..ir.custom_ops import draw_key
from ..ir.graph import Call, Graph


def pack_keys(graph: Graph) -> None:
    packs: dict[tuple, list[Call]] = {}
    for each in graph.operations:
        if isinstance(each, Call) and each.operator is draw_key and each.args[2] == [1]:
            packs.setdefault((each.args[:2], each.results[0].device), []).append(each)
    for (limits, _), found in packs.items():
        if len(found) == 1:
            continue
        packed = Call(draw_key, (*limits, [len(found), 1]), found[0].kwargs, parts=True)
        packed.results = [each.results[0] for each in found]
        for result in packed.results:
            result.maker = packed
        graph.operations[graph.operations.index(found[0])] = packed
        gone = {each for each in found}
        graph.operations = [each for each in graph.operations if each not in gone]
