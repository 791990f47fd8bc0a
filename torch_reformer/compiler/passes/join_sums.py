"""Turn sums of products, of sums over rows and of gradients of one table into one operation.

The gradient of a weight that each step of a loop reads is a sum of matrix products: it is one product of matrices with
joined rows. A sum of sums over rows is one sum over all rows. The one operation adds up in fp32, without rounding each
term, and is launched once.
"""

from __future__ import annotations

import math

import torch

from ..ir.custom_ops import embedding_grad
from ..ir.graph import Call, Graph, Map, Operation, Reduce, Typed, View, is_removable_cast
from ..ir.layout import Layout
from .add_chains import change_terms, find_sums
from .batching import add_at, cost_of_joining, joined, of_call, place_of

_mm = torch.ops.aten.mm.default


def join_sums(graph: Graph) -> None:
    """Join the terms of each sum that can be computed by one operation, if that saves time."""
    written = {value for operation in graph.operations for value in operation.writes}
    readers = graph.readers()
    for sum_ in find_sums(graph):
        makers = [_term(view, readers) for view in sum_.terms]
        kinds: dict[tuple, list[int]] = {}
        for place, term in enumerate(makers):
            key = None if term is None else _key(term)
            if key is not None and written.isdisjoint(view.value for view in term.operands):
                kinds.setdefault(key, []).append(place)
        terms, (result,) = dict(enumerate(sum_.terms)), sum_.last.results
        for places in kinds.values():
            parts = [makers[place] for place in places]
            if not _is_worth_it(graph, parts):
                continue
            term = _joined(graph, sum_.last, parts)
            if term.value.dtype != result.dtype:
                cast = Map([term], "_to_copy", lambda x: x)
                type = Typed(result.layout, result.dtype, result.device)
                value = add_at(graph, place_of(graph, sum_.last), cast, type)
                term = View(value, value.layout)
            terms[places[0]] = term
            for place in places[1:]:
                del terms[place]
        if len(terms) < len(sum_.terms):
            change_terms(graph, sum_, list(terms.values()))
            readers = graph.readers()


def _term(view: View, readers: dict) -> Operation | None:
    """The operation that computes a term, perhaps with casts behind it, if nothing else reads its result; else None."""
    while is_removable_cast(view.value.maker) and _is_read_as_it_is(view, readers):
        (view,) = view.value.maker.inputs
    maker = view.value.maker
    if not isinstance(maker, (Call, Reduce)) or len(maker.results) > 1:
        return None
    return maker if _is_read_as_it_is(view, readers) else None


def _is_read_as_it_is(view: View, readers: dict) -> bool:
    """True if the view is all of a row-major value, and the only view of it that is read."""
    layout = view.value.layout
    return len(readers[view.value]) == 1 and view.layout == layout and layout.is_row_major


def _key(term: Operation) -> tuple | None:
    """Key that terms have in common if they can be one operation; None for a term that cannot be joined."""
    (result,) = term.results
    typed = result.layout, result.dtype, result.device
    if isinstance(term, Reduce):
        sizes = term.input.layout.sizes
        if term.kind == "sum" and term.over and term.input.layout.is_row_major:
            return term.kind, term.over, sizes, term.input.value.dtype, *typed
    elif term.operator is _mm:
        return _mm, *(view.layout.sizes for view in term.operands), *typed
    elif (
        term.operator is embedding_grad
        and term.args[4:] == (False,)  # no base
        and not term.kwargs  # of one table
        and all(view.layout.is_row_major for view in term.operands)
    ):
        return embedding_grad, *term.args[2:4], *typed
    return None


def _is_worth_it(graph: Graph, terms: list[Operation]) -> bool:
    """True if joining the operands costs less than what it saves: calls, and results that are written and added up."""
    (result,) = terms[0].results
    saved = (len(terms) - 1) * (of_call(result.device) + 3 * result.bytes)
    return saved > 0 and sum(cost_of_joining(graph, views, dim) for views, dim in _operands(terms)) < saved


def _operands(terms: list[Operation]) -> list[tuple[list[View], int]]:
    """For each operand, the views of all terms that are joined, and the dimension in which they are."""
    if isinstance(terms[0], Reduce):
        return [([term.input for term in terms], terms[0].over[0])]
    if terms[0].operator is _mm:
        return [([term.args[0].transposed() for term in terms], 0), ([term.args[1] for term in terms], 0)]
    width = terms[0].results[0].layout.sizes[1]
    return [([_rows(term.args[0], width) for term in terms], 0), ([_rows(term.args[1]) for term in terms], 0)]


def _joined(graph: Graph, before: Operation, terms: list[Operation]) -> View:
    """Add one operation that computes the sum of the terms, in front of the operation `before`."""
    first, (result,) = terms[0], terms[0].results
    operands = [joined(graph, views, dim) for views, dim in _operands(terms)]
    if isinstance(first, Reduce):
        operation = Reduce(first.kind, *operands, first.over)
    elif first.operator is _mm:
        operation = Call(_mm, (operands[0].transposed(), operands[1]), {})
    else:
        operation = Call(embedding_grad, (*operands, *first.args[2:]), {})
    type = Typed(result.layout, result.dtype, result.device)
    value = add_at(graph, place_of(graph, before), operation, type)
    return View(value, value.layout)


def _rows(view: View, *width: int) -> View:
    """The view as a matrix with rows of this width, or as a vector if there is none."""
    return View(view.value, Layout.row_major((view.layout.numel // math.prod(width), *width), view.layout.offset))
