"""Batch independent products of small matrices by one matrix into one product, whose rows are those of all.

Products of the inputs of a loop's steps are an example.
"""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Operation, Typed, Value, View
from ..ir.layout import Layout
from .batching import add_at, cost_of_joining, joined, of_call, place_after_join, place_of

aten = torch.ops.aten
_OPERATORS = (aten.mm.default, aten.addmm.default)


def join_products(graph: Graph) -> None:
    """Replace products that can be one if that saves more time than joining their rows takes."""
    written = {value for operation in graph.operations for value in operation.writes}
    outputs = {view.value for view in graph.output_views()}
    kinds: dict[tuple, list[Call]] = {}
    for operation in graph.operations:
        if not _is_product(operation) or operation.results[0] in outputs:
            continue  # a result of the graph has memory of its own
        if written.isdisjoint((*operation.results, *(view.value for view in operation.operands))):
            kinds.setdefault(_key(operation), []).append(operation)
    for products in kinds.values():
        for batch in _independent(graph, products):
            if _is_worth_it(graph, batch) and _delay_readers(graph, batch):
                _join(graph, batch)


def _is_product(operation: Operation) -> bool:
    """True for a product of two matrices, to which a vector may be added per row."""
    if not isinstance(operation, Call) or operation.operator not in _OPERATORS or operation.kwargs:
        return False
    (result,), others = operation.results, operation.args[:-2]
    return result.layout.is_row_major and all(len(view.layout.sizes) == 1 for view in others)


def _key(product: Call) -> tuple:
    """Key that products have in common if they can be one product."""
    *others, (first, second) = product.args[:-2], product.args[-2:]
    (result,) = product.results
    same = [(view.value, view.layout) for view in (*others[0], second)]
    return product.operator, *same, first.layout.sizes, result.layout, result.dtype


def _independent(graph: Graph, products: list[Call]) -> list[list[Call]]:
    """Products by levels, each in the graph's order: the first level depends on no other products, the second one only
    on the first, and so on."""
    levels: list[list[Call]] = []
    depth: dict[Value, int] = {}  # length of the longest chain of the products that a value depends on
    candidates = {product for product in products} if len(products) > 1 else set()
    for operation in graph.operations if candidates else ():
        level = max((depth.get(view.value, 0) for view in operation.operands), default=0)
        if operation in candidates:
            levels += [[]] if level == len(levels) else []
            levels[level].append(operation)
            level += 1
        depth |= {value: level for value in operation.results}
    return levels


def _followers(graph: Graph, *operations: Operation) -> list[Operation]:
    """Operations that depend on one of these, in the graph's order."""
    values = {value for operation in operations for value in operation.results}
    followers = []
    for operation in graph.operations:
        if any(view.value in values for view in operation.operands):
            values |= {value for value in operation.results}
            followers.append(operation)
    return followers


def _is_worth_it(graph: Graph, products: list[Call]) -> bool:
    """True if joining the rows costs less than the calls that it saves."""
    saved = (len(products) - 1) * of_call(products[0].results[0].device)
    return saved > 0 and cost_of_joining(graph, _rows(products), 0) < saved


def _rows(products: list[Call]) -> list[View]:
    """Operands of the products whose rows are joined."""
    return [product.args[-2] for product in products]


def _delay_readers(graph: Graph, products: list[Call]) -> bool:
    """Move operations that depend on one of these products behind all that the products need. False if that would
    change the order of writes or of random numbers."""
    first = min(place_of(graph, product) for product in products)
    end = max(first, place_after_join(graph, _rows(products), 0))
    dependent = {operation for operation in (*products, *_followers(graph, *products))}
    between = graph.operations[first:end]
    if any(operation.writes or (operation.is_ordered and operation in dependent) for operation in between):
        return False
    early = [operation for operation in between if operation not in dependent]
    delayed = [operation for operation in between if operation in dependent]
    graph.operations = [*graph.operations[:first], *early, *delayed, *graph.operations[end:]]
    return True


def _join(graph: Graph, products: list[Call]) -> None:
    """Replace products by one. All their operands are computed before the first of them."""
    *others, _, second = products[0].args
    rows = joined(graph, _rows(products), 0)
    (result,) = products[0].results
    count, columns = result.layout.sizes
    type = Typed(Layout.row_major((len(products) * count, columns)), result.dtype, result.device)
    place = min(place_of(graph, product) for product in products)
    value = add_at(graph, place, Call(products[0].operator, (*others, rows, second), {}), type)
    graph.substitute(
        {
            product.results[0]: View(value, Layout.row_major((count, columns), i * count * columns))
            for i, product in enumerate(products)
        }
    )
