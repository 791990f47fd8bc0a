"""Add gradients of a table to another gradient of it: a table that is also the weight of a product, as in most language
models, has both. The sum is then in the product's memory, and few of its rows are written again."""

from __future__ import annotations

import torch

from ..ir.custom_ops import embedding_grad
from ..ir.graph import Call, Graph, Typed, View
from .add_chains import add_up, find_sums
from .batching import add_at, place_of


def add_embedding_grads(graph: Graph) -> None:
    """Rewrite sums that have gradients of embeddings among their terms."""
    readers, written = graph.readers(), {value for operation in graph.operations for value in operation.writes}
    for sum_ in find_sums(graph):
        (result,) = sum_.last.results
        if not result.layout.is_row_major:
            continue
        gradients = [
            view for view in sum_.terms if len(readers[view.value]) == 1 and _can_be_added(view, result.dtype, written)
        ]
        others = [view for view in sum_.terms if view not in gradients]
        if not gradients or not others:
            continue
        total = add_up(graph, sum_, others)
        for view in gradients:
            call = view.value.maker
            base = Call(embedding_grad, (*call.args[:5], total), dict(call.kwargs))
            value = add_at(graph, place_of(graph, sum_.last), base, Typed(result.layout, result.dtype, result.device))
            total = View(value, value.layout)
        graph.substitute({result: total})


def _can_be_added(view: View, dtype: torch.dtype, written: set) -> bool:
    """True for a whole gradient of this type that has no base yet, and whose operands nothing writes in place."""
    call = view.value.maker
    return (
        isinstance(call, Call)
        and call.operator is embedding_grad
        and call.args[4:] == (False,)
        and (view.layout, view.value.dtype) == (view.value.layout, dtype)
        and written.isdisjoint(operand.value for operand in call.operands)
    )
