"""Sums of many terms, as autograd writes those of gradients: additions of two, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from ...program import Program, full, store
from ..ir.graph import Graph, Map, Operation, Typed, Value, View
from .batching import add_at, expression_of, place_of, replace

_SUM = str(Program(store(full("t0") + full("t1"))))


@dataclass(frozen=True)
class Sum:
    """The last of the additions, and what all of them add up, in order."""

    last: Map
    terms: list[View]


def find_sums(graph: Graph) -> list[Sum]:
    """All of them, whose parts nobody else needs."""
    readers = graph.readers()
    additions = {each for each in graph.operations if _is_addition(each)}

    def inner(view: View, whole: Value) -> Map | None:
        """The addition that makes this term, if it is one of the sum's."""
        maker = view.value.maker
        same = view.layout == view.value.layout and view.value.dtype == whole.dtype
        return maker if maker in additions and same and len(readers[view.value]) == 1 else None

    found, inside = [], set()
    for last in reversed(graph.operations):
        if last not in additions or last in inside:
            continue
        terms, todo = [], last.inputs[::-1]
        while todo:
            view = todo.pop()
            if (part := inner(view, last.results[0])) is None:
                terms.append(view)
            else:
                inside.add(part)
                todo += part.inputs[::-1]
        found.append(Sum(last, terms))
    return found[::-1]


def _is_addition(operation: Operation) -> bool:
    if not isinstance(operation, Map) or operation.name != "add" or len(operation.inputs) != 2:
        return False
    (result,) = operation.results
    return all(view.layout == result.layout for view in operation.inputs) and expression_of(operation) == _SUM


def change_terms(graph: Graph, sum: Sum, terms: list[View]) -> None:
    """Has the sum add up these. The additions that it was made of are left to drop_unused."""
    (result,) = sum.last.results
    *others, last = terms
    if not others:
        graph.operations = [each for each in graph.operations if each is not sum.last]
        replace(graph, {result: last})
        return
    type = Typed(result.layout, result.dtype, result.device)
    total = others[0]
    for each in others[1:]:
        made = add_at(graph, place_of(graph, sum.last), Map([total, each], "add", lambda x, y: x + y), type)
        total = View(made, made.layout)
    sum.last.inputs = [total, last]
