"""Concatenate casts of inputs, such as parameters, instead of casting their concatenation: all casts of parameters are
one kernel then, which can write those of a concatenation side by side (pack_casts.py)."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Map, Typed, View, is_cast
from ..ir.layout import Layout

_cat = torch.ops.aten.cat.default


def cast_parts(graph: Graph) -> None:
    """Exchange a cast and a concatenation of the graph's inputs, if nothing else reads that."""
    uses, inputs = graph.uses(), set(graph.inputs)
    before, graph.operations = graph.operations, []
    for operation in before:
        call = operation.inputs[0].value.maker if is_cast(operation) else None
        if not isinstance(call, Call) or call.operator is not _cat or uses[call.results[0]] > 1:
            graph.operations.append(operation)
            continue
        (result,), (whole,) = operation.results, operation.inputs
        is_of_inputs = all(view.value in inputs and view.layout.numel for view in call.args[0])
        if not is_of_inputs or whole.layout != call.results[0].layout or not whole.layout.matches(result.layout):
            graph.operations.append(operation)
            continue
        graph.operations.remove(call)
        casts = []
        for view in call.args[0]:
            cast = Map([view], operation.name, operation.expression)
            cast.node = operation.node
            type = Typed(Layout(view.layout.sizes, view.layout.strides).packed, result.dtype, result.device)
            (value,) = graph.add(cast, [type])
            casts.append(View(value, value.layout))
        joined = Call(_cat, (casts, *call.args[1:]), {})
        joined.node, joined.results, result.maker = operation.node, [result], joined
        graph.operations.append(joined)
