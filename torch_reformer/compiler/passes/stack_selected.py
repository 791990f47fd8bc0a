"""Turn sums of tensors that are each zero but at one index of a dimension into a stack of what they have there.

The gradient of a tensor of which each step of a loop selects one index is such a sum, and that of a projection from
which torch.nn.MultiheadAttention selects queries, keys and values.
"""

from __future__ import annotations

import torch

from ..ir.fake_tensors import real_tensors
from ..ir.gather import counts_up
from ..ir.graph import Call, Graph, Map, Operation, Reduce, View
from ..ir.layout import Layout
from .add_chains import change_terms, find_sums
from .batching import stacked

_eq = torch.ops.aten.eq.Scalar
# Terms: kernels that read a sum of fewer choose between them, but for copies, whose source takes any order.
_FEWEST, _FEWEST_COPIED = 4, 3


def stack_selected(graph: Graph) -> None:
    """Replace terms of sums that together have each index of a dimension by one stack."""
    readers = graph.readers()
    for sum_ in find_sums(graph):
        (result,) = sum_.last.results
        fewest = _FEWEST_COPIED if all(map(_only_copies, readers.get(result, ()))) else _FEWEST
        if not result.layout.is_row_major:
            continue
        terms = dict(enumerate(sum_.terms))
        selected: dict[int, dict[int, int]] = {}  # a dimension -> an index -> the place of its term
        for place, view in terms.items():
            dim_and_index = _selected(graph, view)
            if dim_and_index is not None and view.value.dtype == result.dtype:
                dim, index = dim_and_index
                selected.setdefault(dim, {}).setdefault(index, place)
        for dim, places in selected.items():
            count = result.layout.sizes[dim]
            if len(places) != count or count < fewest:
                continue
            views = [_part(terms.pop(places[i]), dim) for i in range(count)]
            value = stacked(graph, views, dim)
            terms[places[0]] = View(value, value.layout)
        if len(terms) < len(sum_.terms):
            change_terms(graph, sum_, list(terms.values()))


def _only_copies(reader: Operation | None) -> bool:
    """True for an operation that no program computes, or that only copies."""
    return not isinstance(reader, (Map, Reduce)) or (isinstance(reader, Map) and reader.name == "clone")


def _selected(graph: Graph, term: View) -> tuple[int, int] | None:
    """The dimension, and the index in it, at which a term may be other than zero; None if it is no such term."""
    where = term.value.maker
    if not isinstance(where, Map) or where.name != "where" or len(where.inputs) != 3:
        return None
    if term.layout != term.value.layout or where.inputs[1].value.dtype != term.value.dtype:
        return None
    condition, part, zero = where.inputs
    if not isinstance(zero.value.maker, Map) or zero.value.maker.name != "full[0.0]":
        return None
    dims = [d for d, stride in enumerate(condition.layout.strides) if stride and condition.layout.sizes[d] > 1]
    if len(dims) != 1 or part.layout.strides[dims[0]]:
        return None
    index = _only_index(graph, condition, condition.layout.sizes[dims[0]], condition.layout.strides[dims[0]])
    return None if index is None else (dims[0], index)


def _only_index(graph: Graph, condition: View, size: int, stride: int) -> int | None:
    """The place, of `size` that lie `stride` apart, at which alone a condition is true; None if that is not known."""
    constant, equal = graph.constants.get(condition.value), condition.value.maker
    if constant is not None:
        with real_tensors():
            offset = constant.storage_offset() + condition.layout.offset
            places = constant.as_strided((size,), (stride,), offset).nonzero().flatten().tolist()
        return places[0] if len(places) == 1 else None
    if not isinstance(equal, Call) or equal.operator is not _eq:
        return None
    numbers, index = equal.args
    is_full = stride == 1 and not condition.layout.offset and not numbers.layout.offset
    is_range = counts_up(numbers.value) and numbers.layout == equal.results[0].layout and numbers.layout.numel == size
    return index if is_full and is_range and 0 <= index < size else None


def _part(term: View, dim: int) -> View:
    """The term's elements at its index, without the dimension `dim`."""
    part = term.value.maker.inputs[1]
    sizes, strides = ((*numbers[:dim], *numbers[dim + 1 :]) for numbers in (part.layout.sizes, part.layout.strides))
    return View(part.value, Layout(sizes, strides, part.layout.offset))
