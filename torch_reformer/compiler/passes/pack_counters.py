"""Increment the batch counters of all batch norms by one in-place operator."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, View

aten = torch.ops.aten


def pack_counters(graph: Graph) -> None:
    """Replace pairs of an addition of a number and a copy back by one aten._foreach_add_."""
    uses = graph.uses()
    packs: dict[tuple, list[tuple[Call, Call, View]]] = {}
    for copy in graph.operations:
        if not (isinstance(copy, Call) and copy.operator is aten.copy_.default):
            continue
        to, source = copy.args[:2]
        add = source.value.maker if isinstance(source, View) else None
        if not (isinstance(add, Call) and add.operator is aten.add.Scalar and uses[source.value] == 1):
            continue
        counter, number, *scale = add.args
        # The sum goes back to the counter, which nothing else reads.
        if scale or add.kwargs or counter.value is not to.value or counter.layout != to.layout or uses[to.value] != 2:
            continue
        packs.setdefault((repr(number), to.value.device, to.value.dtype), []).append((add, copy, to))
    for pack in packs.values():
        number = pack[0][0].args[1]
        replaced = {operation for add, copy, _ in pack for operation in (add, copy)}
        views = tuple(view for *_, view in pack)
        graph.operations = [operation for operation in graph.operations if operation not in replaced]
        packed = Call(aten._foreach_add_.Scalar, (list(views), number), {}, (), views)
        graph.add(packed, [])
        packed.node = pack[0][0].node
