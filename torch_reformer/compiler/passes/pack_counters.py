"""Batch norms count their batches, each in a tensor of its own: one operator adds to all of them, in place."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Value, View

aten = torch.ops.aten


def pack_counters(graph: Graph) -> None:
    uses: dict[Value, int] = {}
    for view in (*(view for each in graph.operations for view in each.operands), *graph.output_views()):
        uses[view.value] = uses.get(view.value, 0) + 1
    packs: dict[tuple, list[tuple[Call, Call, View]]] = {}
    for copy in graph.operations:
        if not (isinstance(copy, Call) and copy.operator is aten.copy_.default):
            continue
        to, source = copy.args[:2]
        add = source.value.maker if isinstance(source, View) else None
        if not (isinstance(add, Call) and add.operator is aten.add.Scalar and uses[source.value] == 1):
            continue
        of, number, *scale = add.args
        # The counter itself, needed by nobody else.
        if scale or add.kwargs or of.value is not to.value or of.layout != to.layout or uses[to.value] != 2:
            continue
        packs.setdefault((repr(number), to.value.device, to.value.dtype), []).append((add, copy, to))
    for found in packs.values():
        number = found[0][0].args[1]
        gone = {each for add, copy, _ in found for each in (add, copy)}
        views = tuple(view for *_, view in found)
        graph.operations = [each for each in graph.operations if each not in gone]
        graph.add(Call(aten._foreach_add_.Scalar, (list(views), number), {}, (), views), [])
