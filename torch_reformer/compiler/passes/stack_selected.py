"""A sum of tensors of which each is something in one place of a dimension and zero in the others, as the gradient of
what each step of a loop takes from a tensor, is what they are, stacked."""

from __future__ import annotations

import torch

from ..ir.gather import counts_up
from ..ir.graph import Call, Graph, Map, View
from ..ir.layout import Layout
from .add_chains import change_terms, find_sums
from .batching import stacked

_eq = torch.ops.aten.eq.Scalar
_FEWEST = 4  # of fewer, kernels choose between them as they read them


def stack_selected(graph: Graph) -> None:
    for found in find_sums(graph):
        (result,) = found.last.results
        if not result.layout.is_row_major:
            continue
        terms = dict(enumerate(found.terms))
        selected: dict[int, dict[int, int]] = {}  # a dimension -> the place in it -> that of the term
        for place, view in terms.items():
            chosen = _selected(view)
            if chosen is not None and view.value.dtype == result.dtype:
                selected.setdefault(chosen[0], {}).setdefault(chosen[1], place)
        for dim, places in selected.items():
            count = result.layout.sizes[dim]
            if len(places) != count or count < _FEWEST:
                continue
            views = [_part(terms.pop(places[i]), dim) for i in range(count)]
            value = stacked(graph, views, dim)
            terms[places[0]] = View(value, value.layout)
        if len(terms) < len(found.terms):
            change_terms(graph, found, list(terms.values()))


def _selected(term: View) -> tuple[int, int] | None:
    """In which dimension, and where in it, it is not zero."""
    where = term.value.maker
    if not isinstance(where, Map) or where.name != "where" or len(where.inputs) != 3:
        return None
    if term.layout != term.value.layout or where.inputs[1].value.dtype != term.value.dtype:
        return None
    condition, part, zero = where.inputs
    if not isinstance(zero.value.maker, Map) or zero.value.maker.name != "full[0.0]":
        return None
    equal = condition.value.maker
    if not isinstance(equal, Call) or equal.operator is not _eq:
        return None
    numbers, place = equal.args
    dims = [d for d, stride in enumerate(condition.layout.strides) if stride and condition.layout.sizes[d] > 1]
    if not counts_up(numbers.value) or len(dims) != 1 or numbers.layout != equal.results[0].layout:
        return None
    (dim,) = dims
    size = condition.layout.sizes[dim]
    is_full = condition.layout.strides[dim] == 1 and not condition.layout.offset and not numbers.layout.offset
    if not is_full or numbers.layout.numel != size or not 0 <= place < size or part.layout.strides[dim]:
        return None
    return dim, place


def _part(term: View, dim: int) -> View:
    """What is chosen, without the dimension in which it is repeated."""
    part = term.value.maker.inputs[1]
    sizes, strides = ((*each[:dim], *each[dim + 1 :]) for each in (part.layout.sizes, part.layout.strides))
    return View(part.value, Layout(sizes, strides, part.layout.offset))
