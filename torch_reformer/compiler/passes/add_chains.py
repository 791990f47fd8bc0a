"""Chains of additions, by which autograd writes sums of many gradients: finding their terms, and changing these."""

from __future__ import annotations

from dataclasses import dataclass

from ...program import Program, full, store
from ..ir.expressions import expression_of
from ..ir.graph import Graph, Map, Operation, Typed, Value, View
from .batching import add_at, place_of

_SUM = str(Program(store(full("t0") + full("t1"))))


@dataclass(frozen=True)
class Sum:
    """The last addition of a chain, and the terms that the chain adds up, in order."""

    last: Map
    terms: list[View]


def find_sums(graph: Graph) -> list[Sum]:
    """All longest chains of additions whose intermediate sums nobody else reads, in the graph's order."""
    readers = graph.readers()
    additions = {operation for operation in graph.operations if _is_addition(operation)}

    def inner_addition(term: View, total: Value) -> Map | None:
        """The addition that computes a term, if it belongs to the chain."""
        maker = term.value.maker
        same = term.layout == term.value.layout and term.value.dtype == total.dtype
        return maker if maker in additions and same and len(readers[term.value]) == 1 else None

    sums, inner = [], set()
    for last in reversed(graph.operations):
        if last not in additions or last in inner:
            continue
        terms, todo = [], last.inputs[::-1]
        while todo:
            view = todo.pop()
            if (addition := inner_addition(view, last.results[0])) is None:
                terms.append(view)
            else:
                inner.add(addition)
                todo += addition.inputs[::-1]
        sums.append(Sum(last, terms))
    return sums[::-1]


def _is_addition(operation: Operation) -> bool:
    """True if the operation adds two tensors of its result's layout."""
    if not isinstance(operation, Map) or operation.name != "add" or len(operation.inputs) != 2:
        return False
    (result,) = operation.results
    return all(view.layout == result.layout for view in operation.inputs) and expression_of(operation) == _SUM


def change_terms(graph: Graph, sum: Sum, terms: list[View]) -> None:
    """Make the sum add up other terms. Additions that nobody reads any more are left to drop_unused."""
    (result,) = sum.last.results
    *others, last = terms
    if others:
        sum.last.inputs = [add_up(graph, sum, others), last]
    else:
        graph.substitute({result: last})


def add_up(graph: Graph, sum: Sum, terms: list[View]) -> View:
    """Add additions of these terms in front of the sum's last."""
    (result,) = sum.last.results
    total, *others = terms
    type = Typed(result.layout, result.dtype, result.device)
    for term in others:
        partial = add_at(graph, place_of(graph, sum.last), Map([total, term], "add", lambda x, y: x + y), type)
        total = View(partial, partial.layout)
    return total
