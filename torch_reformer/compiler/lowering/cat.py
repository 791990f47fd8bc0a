"""Concatenations of a few equal parts of a row, as in rotary embeddings and their gradients: each element is one of the
parts, by its column. So they are computed with what they are made of and what they are read for. On a GPU a thread
reads the part alone that its elements are of, where no vector goes across parts' ends; else all, from the same lines of
the cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ... import program as p
from ...program import Value as Expression
from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of
from ..ir.graph import Call, Graph, Map, Random, Typed, View
from ..ir.iteration_space import LONGEST_ROW, find_space, index_map_of
from ..ir.layout import Layout
from . import pointwise
from .pointwise import add_typed_map

aten = torch.ops.aten

_MOST = 4  # parts
_DEEPEST, _MOST_OPERANDS = 2, 2  # of operations that compute a part: they are computed for the others' elements, too
_Computed = tuple[list[View], Callable[..., Expression]]  # operands, and the value from theirs


def _concatenated(graph: Graph, value: Tensor, parts: list[View], dim: int = 0) -> View | None:
    if len(parts) == 1 and (copy := pointwise.RULES[aten.clone.default](graph, value, parts[0])) is not None:
        return copy
    layout = layout_of(value)
    dim = dim % max(len(layout.sizes), 1)
    if not 2 <= len(parts) <= _MOST or len({(each.layout.sizes, each.value.dtype) for each in parts}) > 1:
        return None
    if value.dtype not in FLOATS or value.dtype != parts[0].value.dtype or not layout.numel:
        return None
    if value.dtype == torch.float64 and value.device.type != "cpu":
        return None
    width = layout.sizes[dim] // len(parts)
    if not layout.is_dense or layout.strides[dim] != 1 or width == 1 or layout.sizes[dim] > LONGEST_ROW:
        return None

    def split(each: tuple[int, ...], part: int, column: int) -> tuple[int, ...]:
        """Sizes or strides, with the dimension that is concatenated as two."""
        return (*each[:dim], part, column, *each[dim + 1 :])

    whole = Layout(split(layout.sizes, len(parts), width), split(layout.strides, width, 1))
    columns = Layout(whole.sizes, split((0,) * len(layout.sizes), width, 1))

    def repeated(view: View) -> View:
        own = view.layout
        return View(view.value, Layout(whole.sizes, split(own.strides, 0, own.strides[dim]), own.offset))

    read = [_computed(each, _DEEPEST) for each in parts]
    if all(each.is_full and (way is None or way[0] == [each]) for each, way in zip(parts, read, strict=True)):
        return None  # all are in memory, as the result will be: PyTorch's copies do
    for computed in ([way or _itself(each) for each, way in zip(parts, read, strict=True)], list(map(_itself, parts))):
        inputs = [repeated(each) for views, _ in computed for each in views]
        index_map = {index_map_of(whole, each) for each in (columns, *(view.layout for view in inputs))}
        if find_space(layout.numel, index_map, set()) is not None:
            break
    else:
        return None

    def chosen(column: Expression, *operands: Expression) -> Expression:
        found = _each(computed, operands)
        rest = found[-1]
        for i in reversed(range(len(found) - 1)):
            rest = p.select(column < (i + 1) * width, found[i], rest)
        return rest

    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    count = layout.sizes[dim]
    arange = Call(aten.arange.default, (count,), {"dtype": wide, "device": value.device})
    (numbers,) = graph.add(arange, [Typed(Layout((count,), (1,)), wide, value.device)])
    type = Typed(whole, value.dtype, value.device)
    made = add_typed_map(graph, "cat", chosen, [View(numbers, columns), *inputs], type)
    return View(made.value, layout)


def _itself(part: View) -> _Computed:
    return [part], lambda own: own


def _computed(part: View, deepest: int) -> _Computed | None:
    """What a part is computed from that is in memory anyway, and how. None if it is not by few element-wise operations
    of few operands."""
    maker, starts = part.value.maker, _starts(part)
    if not isinstance(maker, Map):
        return _itself(part)
    if not deepest or starts is None or isinstance(maker, Random) or not 1 <= len(maker.inputs) <= _MOST_OPERANDS:
        return None
    found = []
    for view in maker.inputs:
        skipped = sum(start * stride for start, stride in zip(starts, view.layout.strides, strict=True))
        layout = Layout(part.layout.sizes, view.layout.strides, view.layout.offset + skipped)
        found.append(_computed(View(view.value, layout), deepest - 1))
    if None in found:
        return None

    views = [view for views, _ in found for view in views]
    return views, lambda *operands: maker.expression(*_each(found, operands))


def _each(computed: list[_Computed], operands: tuple[Expression, ...]) -> list[Expression]:
    """Each of them, of all their operands one after the other."""
    left = iter(operands)
    return [expression(*itertools.islice(left, len(views))) for views, expression in computed]


def _starts(view: View) -> list[int] | None:
    """Where it begins in each of its value's dimensions, if it is a part of it by these."""
    own, whole = view.layout, view.value.layout
    if len(own.sizes) != len(whole.sizes) or not whole.is_dense:
        return None
    starts, offset = [0] * len(own.sizes), own.offset
    for d in sorted(range(len(own.sizes)), key=lambda d: -whole.strides[d]):
        if whole.sizes[d] == 1:
            continue
        if own.strides[d] != whole.strides[d] and own.sizes[d] != 1:
            return None
        starts[d], offset = divmod(offset, whole.strides[d])
        if starts[d] + own.sizes[d] > whole.sizes[d]:
            return None
    return None if offset else starts


RULES = {aten.cat.default: _concatenated}
