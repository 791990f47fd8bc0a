"""Products of small matrices and one other that do not need one another, as of what each step of a loop is given, are
one product of joined rows."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Operation, Typed, Value, View
from ..ir.layout import Layout
from .batching import add_at, cost_of_joining, joined, of_call, place_after_join, place_of, replace

aten = torch.ops.aten
_OPERATORS = (aten.mm.default, aten.addmm.default)


def join_products(graph: Graph) -> None:
    written = {value for each in graph.operations for value in each.writes}
    outputs = {view.value for view in graph.output_views()}
    kinds: dict[tuple, list[Call]] = {}
    for each in graph.operations:
        if not _is_product(each) or each.results[0] in outputs:
            continue  # a result of the graph has memory of its own
        if written.isdisjoint(value for value in (*each.results, *(view.value for view in each.operands))):
            kinds.setdefault(_key(each), []).append(each)
    for products in kinds.values():
        for batch in _independent(graph, products):
            if _is_worth_it(graph, batch) and _delay_readers(graph, batch):
                _join(graph, batch)


def _is_product(operation: Operation) -> bool:
    """Whether it is one of two matrices, perhaps with a vector that is added to each row."""
    if not isinstance(operation, Call) or operation.operator not in _OPERATORS or operation.kwargs:
        return False
    (result,), others = operation.results, operation.args[:-2]
    return result.layout.is_row_major and all(len(each.layout.sizes) == 1 for each in others)


def _key(product: Call) -> tuple:
    """What all have in common that may be one."""
    *others, (first, second) = product.args[:-2], product.args[-2:]
    (result,) = product.results
    same = [(view.value, view.layout) for view in (*others[0], second)]
    return product.operator, *same, first.layout.sizes, result.layout, result.dtype


def _independent(graph: Graph, products: list[Call]) -> list[list[Call]]:
    """Those that need none, in the graph's order, those that need some of these alone, and so on."""
    found: list[list[Call]] = []
    after: dict[Value, int] = {}  # value -> how many of the products it needs at most, one after the other
    wanted = {each for each in products} if len(products) > 1 else set()
    for each in graph.operations if wanted else ():
        level = max((after.get(view.value, 0) for view in each.operands), default=0)
        if each in wanted:
            found += [[]] if level == len(found) else []
            found[level].append(each)
            level += 1
        after |= {value: level for value in each.results}
    return found


def _followers(graph: Graph, *operations: Operation) -> list[Operation]:
    """What needs one of them."""
    made = {value for each in operations for value in each.results}
    found = []
    for each in graph.operations:
        if any(view.value in made for view in each.operands):
            made |= {value for value in each.results}
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
    first = min(place_of(graph, each) for each in products)
    end = max(first, place_after_join(graph, _rows(products), 0))
    late = {each for each in (*products, *_followers(graph, *products))}
    between = graph.operations[first:end]
    if any(each.writes or (each.is_random and each in late) for each in between):
        return False
    early = [each for each in between if each not in late]
    delayed = [each for each in between if each in late]
    graph.operations = [*graph.operations[:first], *early, *delayed, *graph.operations[end:]]
    return True


def _join(graph: Graph, products: list[Call]) -> None:
    """One product in the place of all of them, whose operands are there before the first."""
    *others, _, second = products[0].args
    rows = joined(graph, _rows(products), 0)
    (result,) = products[0].results
    count, columns = result.layout.sizes
    type = Typed(Layout.row_major((len(products) * count, columns)), result.dtype, result.device)
    gone = {each for each in products}
    place = next(place for place, each in enumerate(graph.operations) if each in gone)
    value = add_at(graph, place, Call(products[0].operator, (*others, rows, second), {}), type)
    graph.operations = [each for each in graph.operations if each not in gone]
    parts = {
        each.results[0]: View(value, Layout.row_major((count, columns), i * count * columns))
        for i, each in enumerate(products)
    }
    replace(graph, parts)
