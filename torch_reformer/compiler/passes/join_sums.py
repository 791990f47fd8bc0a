"""A sum of products of matrices, as the gradient of a weight that each step of a loop reads, is one product of what
lies in joined rows; a sum of sums over rows is one over all rows, and gradients of one table are one. Added up in fp32,
not rounded term by term, and launched once."""

from __future__ import annotations

import math

import torch

from ..ir.graph import Call, Graph, Map, Operation, Reduce, Typed, View, is_removable_cast
from ..ir.layout import Layout
from .add_chains import change_terms, find_sums
from .batching import add_at, cost_of_joining, joined, of_call, place_of

_mm = torch.ops.aten.mm.default
_embedding_grad = torch.ops.reformer._embedding_grad.default


def join_sums(graph: Graph) -> None:
    written = {value for each in graph.operations for value in each.writes}
    readers = graph.readers()
    for found in find_sums(graph):
        made_by = [_term(view, readers) for view in found.terms]
        kinds: dict[tuple, list[int]] = {}
        for place, term in enumerate(made_by):
            key = None if term is None else _key(term)
            if key is not None and written.isdisjoint(view.value for view in term.operands):
                kinds.setdefault(key, []).append(place)
        terms, (result,) = dict(enumerate(found.terms)), found.last.results
        for places in kinds.values():
            parts = [made_by[place] for place in places]
            if not _is_worth_it(graph, parts):
                continue
            made = _joined(graph, found.last, parts)
            if made.value.dtype != result.dtype:
                cast = Map([made], "_to_copy", lambda x: x)
                value = add_at(
                    graph, place_of(graph, found.last), cast, Typed(result.layout, result.dtype, result.device)
                )
                made = View(value, value.layout)
            terms[places[0]] = made
            for place in places[1:]:
                del terms[place]
        if len(terms) < len(found.terms):
            change_terms(graph, found, list(terms.values()))
            readers = graph.readers()


def _term(view: View, readers: dict) -> Operation | None:
    """The operation that makes this term, perhaps cast afterwards, for nobody else."""
    while is_removable_cast(view.value.maker) and _is_read_as_it_is(view, readers):
        (view,) = view.value.maker.inputs
    maker = view.value.maker
    if not isinstance(maker, (Call, Reduce)) or len(maker.results) > 1:
        return None
    return maker if _is_read_as_it_is(view, readers) else None


def _is_read_as_it_is(view: View, readers: dict) -> bool:
    own = view.value.layout
    return len(readers[view.value]) == 1 and view.layout == own and own.is_row_major


def _key(term: Operation) -> tuple | None:
    """What all have in common that may be one; None for what is not joined."""
    (result,) = term.results
    own = result.layout, result.dtype, result.device
    if isinstance(term, Reduce):
        sizes = term.input.layout.sizes
        if term.kind == "sum" and term.over and term.input.layout.is_row_major:
            return term.kind, term.over, sizes, term.input.value.dtype, *own
    elif term.operator is _mm:
        return _mm, *(view.layout.sizes for view in term.operands), *own
    elif (
        term.operator is _embedding_grad
        and not term.args[4]
        and all(each.layout.is_row_major for each in term.operands)
    ):
        return _embedding_grad, *term.args[2:4], *own
    return None


def _is_worth_it(graph: Graph, terms: list[Operation]) -> bool:
    """Whether to join the operands costs less than the other terms' calls, and their results, which are written and
    added up."""
    (result,) = terms[0].results
    saved = (len(terms) - 1) * (of_call(result.device) + 3 * result.bytes)
    return saved > 0 and sum(cost_of_joining(graph, *each) for each in _operands(terms)) < saved


def _operands(terms: list[Operation]) -> list[tuple[list[View], int]]:
    """What is joined, of each operand of all terms, and in which dimension."""
    if isinstance(terms[0], Reduce):
        return [([each.input for each in terms], terms[0].over[0])]
    if terms[0].operator is _mm:
        return [([_transposed(each.args[0]) for each in terms], 0), ([each.args[1] for each in terms], 0)]
    width = terms[0].results[0].layout.sizes[1]
    return [([_rows(each.args[0], width) for each in terms], 0), ([_rows(each.args[1]) for each in terms], 0)]


def _joined(graph: Graph, before: Operation, terms: list[Operation]) -> View:
    """The sum of these terms, by one operation."""
    first, (result,) = terms[0], terms[0].results
    operands = [joined(graph, *each) for each in _operands(terms)]
    if isinstance(first, Reduce):
        made = Reduce(first.kind, *operands, first.over)
    elif first.operator is _mm:
        made = Call(_mm, (_transposed(operands[0]), operands[1]), {})
    else:
        made = Call(_embedding_grad, (*operands, *first.args[2:]), {})
    type = Typed(result.layout, result.dtype, result.device)
    value = add_at(graph, place_of(graph, before), made, type)
    return View(value, value.layout)


def _transposed(view: View) -> View:
    layout = view.layout
    return View(view.value, Layout(layout.sizes[::-1], layout.strides[::-1], layout.offset))


def _rows(view: View, *width: int) -> View:
    """All of its rows of this width, or of no width."""
    return View(view.value, Layout.row_major((view.layout.numel // math.prod(width), *width), view.layout.offset))
