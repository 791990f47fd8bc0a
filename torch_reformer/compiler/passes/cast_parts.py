"""Concatenate casts of inputs, such as parameters, instead of casting their concatenation: all casts of parameters are
one kernel then, which can write those of a concatenation side by side (pack_casts.py)."""

from __future__ import annotations

import torch

from ...runtime.dtypes import FLOATS
from ..ir.graph import Call, Graph, Map, Typed, View, is_cast
from ..ir.iteration_space import has_space
from ..ir.layout import Layout

_cat = torch.ops.aten.cat.default


def _packed(view: View) -> Layout:
    return Layout(view.layout.sizes, view.layout.strides).packed


def _is_castable(view: View) -> bool:
    """True if a program can read the view element by element and compute with its data type."""
    is_number = view.value.dtype in (*FLOATS, torch.bool)
    return is_number and view.layout.numel > 0 and has_space([view], _packed(view))


def cast_parts(graph: Graph) -> None:
    """Exchange a cast and a concatenation of the graph's inputs, if nothing else reads that."""
    uses, inputs = graph.uses(), set(graph.inputs)
    before, graph.operations = graph.operations, []
    for operation in before:
        call = operation.inputs[0].value.maker if is_cast(operation) else None
        if not isinstance(call, Call) or call.operator is not _cat or uses[call.results[0]] > 1:
            graph.operations.append(operation)
            continue
        (result,), (whole,), parts = operation.results, operation.inputs, call.args[0]
        are_castable = all(view.value in inputs and _is_castable(view) for view in parts)
        if not are_castable or whole.layout != call.results[0].layout or not whole.layout.matches(result.layout):
            graph.operations.append(operation)
            continue
        graph.operations.remove(call)
        casts = []
        for view in parts:
            cast = Map([view], operation.name, operation.expression)
            cast.node, cast.rounds = operation.node, operation.rounds
            (value,) = graph.add(cast, [Typed(_packed(view), result.dtype, result.device)])
            casts.append(View(value, value.layout))
        joined = Call(_cat, (casts, *call.args[1:]), {})
        joined.node, joined.results, result.maker = operation.node, [result], joined
        graph.operations.append(joined)
