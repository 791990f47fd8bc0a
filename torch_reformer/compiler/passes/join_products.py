"""Products of small matrices and one other that do not need one another, as of what each step of a loop is given, are
one product of joined rows."""

from __future__ import annotations

import torch

from ..ir import Call, Graph, Operation, Typed, View
from ..joins import add_at, cost_of_joining, joined, of_call, place_after_join, place_of, replace, row_major

aten = torch.ops.aten
_OPERATORS = (aten.mm.default, aten.addmm.default)


def join_products(graph: Graph) -> None:
    written = {id(value) for each in graph.operations for value in each.writes}
    outputs = {id(view.value) for view in graph.output_views()}
    kinds: dict[tuple, list[Call]] = {}
    for each in graph.operations:
        if not isinstance(each, Call) or each.operator not in _OPERATORS or id(each.results[0]) in outputs:
            continue  # a result of the graph has memory of its own
        if written.isdisjoint(id(value) for value in (*each.results, *(view.value for view in each.operands))):
            kinds.setdefault(_key(each), []).append(each)
    for products in kinds.values():
        left = products
        while len(left) > 1:
            batch = _independent(graph, left)
            if _is_worth_it(graph, batch) and _delay_readers(graph, batch):
                _join(graph, batch)
            left = [each for each in left if not any(each is other for other in batch)]


def _key(product: Call) -> tuple:
    """What all have in common that may be one."""
    *others, (first, second) = product.args[:-2], product.args[-2:]
    (result,) = product.results
    same = [(id(view.value), view.layout) for view in (*others[0], second)]
    return product.operator, *same, first.layout.sizes, result.layout, result.dtype, *sorted(product.kwargs)


def _independent(graph: Graph, products: list[Call]) -> list[Call]:
    """The first in the graph's order, and those that need none of them."""
    found, wanted = [], {id(each) for each in products}
    later: set[int] = set()
    for each in graph.operations:
        if id(each) in wanted and id(each) not in later:
            found.append(each)
            later |= {id(follower) for follower in _followers(graph, each)}
    return found


def _followers(graph: Graph, *operations: Operation) -> list[Operation]:
    """What needs one of them."""
    made = {id(value) for each in operations for value in each.results}
    found = []
    for each in graph.operations:
        if any(id(view.value) in made for view in each.operands):
            made |= {id(value) for value in each.results}
            found.append(each)
    return found


def _is_worth_it(graph: Graph, products: list[Call]) -> bool:
    """Whether to join their rows costs less than the other calls."""
    saved = (len(products) - 1) * of_call(products[0].results[0].device)
    return saved > 0 and cost_of_joining(graph, _rows(products), 0) < saved


def _rows(products: list[Call]) -> list[View]:
    return [each.args[-2] for each in products]


def _delay_readers(graph: Graph, products: list[Call]) -> bool:
    """Puts what needs one of these behind what all of them need; says whether that could be."""
    first = place_of(graph, products[0])
    end = max(first, place_after_join(graph, _rows(products), 0))
    late = {id(each) for each in (*products, *_followers(graph, *products))}
    between = graph.operations[first:end]
    if any(each.writes or (each.is_random and id(each) in late) for each in between):
        return False
    early = [each for each in between if id(each) not in late]
    delayed = [each for each in between if id(each) in late]
    graph.operations = [*graph.operations[:first], *early, *delayed, *graph.operations[end:]]
    return True


def _join(graph: Graph, products: list[Call]) -> None:
    """One product in the place of all of them, whose operands are there before the first."""
    *others, _, second = products[0].args
    rows = joined(graph, _rows(products), 0)
    (result,) = products[0].results
    count, columns = result.layout.sizes
    type = Typed(row_major((len(products) * count, columns)), result.dtype, result.device)
    gone = {id(each) for each in products}
    place = next(place for place, each in enumerate(graph.operations) if id(each) in gone)
    value = add_at(graph, place, Call(products[0].operator, (*others, rows, second), products[0].kwargs), type)
    graph.operations = [each for each in graph.operations if id(each) not in gone]
    parts = {
        id(each.results[0]): View(value, row_major((count, columns), i * count * columns))
        for i, each in enumerate(products)
    }
    replace(graph, parts)
