"""Rules of argmax, argmin, and of the maxima and minima of a dimension with their places: a maximum, and the first
place with an element that equals it; and of the element of each row at an index.

A kernel may compute the elements once for the maximum and again for the places. So the rules take only elements in
memory, and what is made of them without an arithmetic rounding: others could differ, and equal their maximum nowhere.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ... import program as p
from ...program import Value as Expression
from ...program.operations import COMPARISONS
from ...program.values import as_value, in_order
from ...runtime.dtypes import FLOATS
from ..ir.graph import Call, Graph, Indexed, Map, OverDims, Typed, View
from ..ir.index_maps import without
from ..ir.iteration_space import reduces_rows
from ..ir.layout import Layout
from ..ir.through_maps import can_map
from . import constant_indices
from . import functions as f
from .indices import indices
from .pointwise import ROUND
from .reduced import mapped, reduced, repeated, wide
from .reductions import result_of
from .whole_numbers import MOST, note_range, range_of

aten = torch.ops.aten
# Elements of a dimension in the middle. With fewer, two kernels take longer than storing the elements for PyTorch's.
_FEWEST = 128
_EXACT = {"neg", "abs", "relu", "maximum", "minimum", "select", "clip", "floor", "round", "constant", *COMPARISONS}
_EXACT |= {"round_bf16", "round_fp16", "full"}


def _places(graph: Graph, view: View, dim: int, sign: int) -> tuple[View, View] | None:
    """The maxima over a dimension of the elements times `sign`, and their places, in the type that programs compute in;
    both with one element in that dimension."""
    size = view.layout.sizes[dim]
    if view.value.dtype not in FLOATS or not view.layout.numel or size >= MOST or not _is_not_rounded(view):
        return None
    is_made = isinstance(view.value.maker, Map)
    if not reduces_rows(view.layout.numel, without(view.layout.packed, (dim,))):
        if not is_made or size < _FEWEST:
            return None  # it would be read twice
    rounded = ROUND.get(view.value.dtype, lambda x: x) if is_made else lambda x: x
    source: View | None = view
    if is_made or sign < 0:
        source = mapped(graph, "signed", lambda x: rounded(x) if sign > 0 else -rounded(x), [view], wide(view))
    maxima = source and reduced(graph, "max", source, (dim,))
    if not source or not maxima or maxima.value is source.value:
        return None
    sizes, numbers = source.layout.sizes, _numbers(graph, source, dim)

    def place(x: Expression, most: Expression, number: Expression) -> Expression:
        return p.select(p.select(p.equal(x, most), 1, f.is_nan(x)), -number, -size)

    first = mapped(graph, "place", place, [source, repeated(maxima, sizes), numbers], wide(view))
    places = first and reduced(graph, "max", first, (dim,))
    return places and (maxima, places)


def _numbers(graph: Graph, view: View, dim: int) -> View:
    """The place of each of the view's elements along a dimension."""
    sizes = view.layout.sizes
    along = Layout(sizes, tuple(int(d == dim) for d in range(len(sizes))))
    return View(indices(graph, sizes[dim], view.value).value, along)


def _is_not_rounded(view: View) -> bool:
    """True if the elements are in memory, or made without rounding of such elements."""
    todo, seen = [view.value.maker], set()
    while todo:
        maker = todo.pop()
        if maker in seen:
            continue
        seen.add(maker)
        if isinstance(maker, OverDims) or (isinstance(maker, Indexed) and not maker.only_chooses):
            return False
        if isinstance(maker, Map):
            leaves = [p.full(f"x{i}") for i in range(len(maker.inputs))]
            if any(node.op not in _EXACT for node in in_order([as_value(maker.expression(*leaves))])):
                return False
            todo += [each.value.maker for each in maker.inputs]
    return True


def _of_dim(sign: int, graph: Graph, value: tuple[Tensor, Tensor], view: View, dim: int, keepdim: bool = False):
    """Rule of max.dim and min.dim."""
    over = (dim % len(view.layout.sizes),) if view.layout.sizes else ()
    found = _places(graph, view, *over, sign) if over else None
    if found is None:
        return None
    maxima, places = found
    values = result_of(graph, maxima, value[0], over, view, "signed", lambda x: x * sign)
    numbers = _as_indices(graph, places, value[1], over, view)
    return None if values is None or numbers is None else [values, numbers]


def _only_places(sign: int, graph: Graph, value: Tensor, view: View, dim: int | None = None, keepdim: bool = False):
    """Rule of argmax and argmin, of a dimension."""
    if dim is None or not view.layout.sizes:
        return None
    over = (dim % len(view.layout.sizes),)
    found = _places(graph, view, *over, sign)
    return found and _as_indices(graph, found[1], value, over, view)


def _as_indices(graph: Graph, places: View, like: Tensor, over: tuple[int, ...], view: View) -> View | None:
    found = result_of(graph, places, like, over, view, "neg", lambda x: -x)
    if found is not None:
        note_range(graph, found, 0, view.layout.sizes[over[0]] - 1)
    return found


def _gather(graph: Graph, value: Tensor, view: View, dim: int, index: View, sparse_grad: bool = False) -> View | None:
    """Rule of gather of one element of each row that a program computes: a sum in which the others are 0, so that no
    row is stored."""
    found = constant_indices.RULES[aten.gather.default](graph, value, view, dim, index, sparse_grad)
    if found is not None or not isinstance(view.value.maker, Map) or not view.layout.sizes:
        return found
    sizes, over = view.layout.sizes, (dim % len(view.layout.sizes),)
    if index.layout.sizes != tuple(1 if d in over else n for d, n in enumerate(sizes)) or not index.layout.is_dense:
        return None
    if view.value.dtype not in FLOATS or not can_map(view.value.device):
        return None
    if sizes[over[0]] >= MOST or not reduces_rows(view.layout.numel, without(view.layout.packed, over)):
        return None
    places = repeated(_checked(graph, index, sizes[over[0]]), sizes)

    def chosen(x: Expression, number: Expression, place: Expression) -> Expression:
        return p.select(p.equal(number, place), x, 0)

    terms = mapped(graph, "chosen", chosen, [view, _numbers(graph, view, over[0]), places], view.value.dtype)
    sums = terms and reduced(graph, "sum", terms, over)
    return sums and result_of(graph, sums, value, (), view)


def _checked(graph: Graph, index: View, size: int) -> View:
    """A dense index whose numbers are less than a size. The errors are those of index_add's indices."""
    known, layout = range_of(graph, index), index.layout
    if known.least >= 0 and known.most < size:
        return index
    flat = View(index.value, Layout((layout.numel,), (1,), layout.offset))
    check = Call(torch.ops.reformer._row_numbers.default, (flat, size, "index_add", 1), {})
    (checked,) = graph.add(check, [Typed(Layout(flat.layout.sizes, (1,)), torch.int32, index.value.device)])
    return View(checked, Layout(layout.sizes, layout.strides))


RULES = {
    aten.gather.default: _gather,
    aten.max.dim: functools.partial(_of_dim, 1),
    aten.min.dim: functools.partial(_of_dim, -1),
    aten.argmax.default: functools.partial(_only_places, 1),
    aten.argmin.default: functools.partial(_only_places, -1),
}
