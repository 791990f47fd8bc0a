"""Concatenations of a few equal parts along rows, as in rotary embeddings and their gradients, as Maps.

The column of an element selects its part, so the concatenation is fused with the operations that compute the parts and
with those that read it. On a GPU, a thread reads only the part of its elements if no vector crosses the end of a part;
else it reads all parts, from the same cache lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ... import program as p
from ...program import Value as Expression
from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of
from ..ir.graph import Graph, Indexed, Map, Random, Typed, View, is_cast
from ..ir.index_maps import index_map_of
from ..ir.issue_slots import slots_of_values
from ..ir.iteration_space import LONGEST_ROW, find_space
from ..ir.layout import Layout
from . import pointwise
from .alike import computed_at_once, operands_of
from .indices import indices
from .pointwise import add_typed_map

aten = torch.ops.aten

_MOST = 4  # parts
# Depth of the operations that compute a part, operands of each, of all, and issue slots of all parts: they are computed
# for the elements of all other parts, too. Slower ones, as the halves of GELU's gated gradient, are written into the
# result by the kernel that computes them. Casts do not count if all parts are computed from the same tensors, which are
# read in any case.
_DEEPEST, _DEEPEST_OF_SAME, _MOST_OPERANDS, _MOST_OF_PART, _MOST_SLOTS = 2, 3, 2, 4, 14
_Computed = tuple[list[View], Callable[..., Expression]]  # operands, and the part's value as a function of theirs


def _concatenated(graph: Graph, value: Tensor, parts: list[View], dim: int = 0) -> View | None:
    """Rule of aten.cat."""
    if len(parts) == 1 and (copy := pointwise.RULES[aten.clone.default](graph, value, parts[0])) is not None:
        return copy
    layout = layout_of(value)
    dim = dim % max(len(layout.sizes), 1)
    if not 2 <= len(parts) <= _MOST or len({(part.layout.sizes, part.value.dtype) for part in parts}) > 1:
        return None
    if value.dtype not in FLOATS or value.dtype != parts[0].value.dtype or not layout.numel:
        return None
    if value.dtype == torch.float64 and value.device.type != "cpu":
        return None
    width = layout.sizes[dim] // len(parts)
    if not layout.is_dense or layout.strides[dim] != 1 or width == 1 or layout.sizes[dim] > LONGEST_ROW:
        return None

    def split(numbers: tuple[int, ...], part: int, column: int) -> tuple[int, ...]:
        """Sizes or strides, with the concatenated dimension as two: part and column."""
        return (*numbers[:dim], part, column, *numbers[dim + 1 :])

    whole = Layout(split(layout.sizes, len(parts), width), split(layout.strides, width, 1))
    columns = Layout(whole.sizes, split((0,) * len(layout.sizes), width, 1))

    def repeated(view: View) -> View:
        """View of a part's operand, repeated for each part."""
        strides = view.layout.strides
        return View(view.value, Layout(whole.sizes, split(strides, 0, strides[dim]), view.layout.offset))

    def joined(part: Layout, step: int) -> Layout:
        """Layout of all parts, which lie at this distance."""
        return Layout(whole.sizes, split(part.strides, step, part.strides[dim]), part.offset)

    if (result := computed_at_once(graph, parts, whole, joined)) is not None:
        return View(result.value, layout)
    ways = _of_same(parts) or [_computed(part, _DEEPEST) for part in parts]
    if _slots(ways) > _MOST_SLOTS:
        ways = [None for _ in parts]
    if all(part.is_full and (way is None or way[0] == [part]) for part, way in zip(parts, ways, strict=True)):
        return None  # all parts are in memory, and so will be the result: PyTorch's copies are as good
    in_place = [way or _itself(part) for part, way in zip(parts, ways, strict=True)]
    for computed in (in_place, [_itself(part) for part in parts]):
        inputs = [repeated(view) for views, _ in computed for view in views]
        index_maps = {index_map_of(whole, operand) for operand in (columns, *(view.layout for view in inputs))}
        if find_space(layout.numel, index_maps, set()) is not None:
            break
    else:
        return None

    def chosen(column: Expression, *operands: Expression) -> Expression:
        """The element of the part that has this column."""
        *values, rest = _values(computed, operands)
        for i in reversed(range(len(values))):
            rest = p.select(column < (i + 1) * width, values[i], rest)
        return rest

    numbers = indices(graph, layout.sizes[dim], value)
    type = Typed(whole, value.dtype, value.device)
    result = add_typed_map(graph, "cat", chosen, [View(numbers.value, columns), *inputs], type)
    return View(result.value, layout)


def _itself(part: View) -> _Computed:
    """The part as it is in memory."""
    return [part], lambda operand: operand


def _of_same(parts: list[View]) -> list[_Computed] | None:
    """Ways to compute all parts from the same tensors; None if there are none."""
    ways = [_computed(part, _DEEPEST_OF_SAME, of_same=True) for part in parts]
    if any(way is None or len(way[0]) > _MOST_OF_PART for way in ways):
        return None
    tensors = [{view.value for view in views if not _is_repeated(view)} for views, _ in ways]
    return ways if all(tensors) and all(each == tensors[0] for each in tensors) else None


def _computed(part: View, deepest: int, of_same: bool = False) -> _Computed | None:
    """Operands that are in memory anyway, and the expression that computes a part from them. None if it would take more
    than a few element-wise operations of a few operands.

    Args:
        of_same: casts do not count, and operands that would take more are read as they are if they are repeated, or no
            wider than the result of their only reader.
    """
    maker, steps = part.value.maker, 1
    if not isinstance(maker, Map) or isinstance(maker, Indexed):
        return _itself(part)
    if of_same and is_cast(maker):
        steps = 0
    is_simple = deepest >= steps and 1 <= len(maker.inputs) <= _MOST_OPERANDS
    views = operands_of(part) if is_simple and not isinstance(maker, Random) else None
    if views is None:
        return _itself(part) if of_same and _is_repeated(part) else None
    operands = [_computed(view, deepest - steps, of_same) for view in views]
    if None in operands:
        (first, *others) = views
        if not of_same or others or first.value.dtype.itemsize > part.value.dtype.itemsize:
            return None
        operands = [_itself(first)]
    inputs = [view for views, _ in operands for view in views]
    return inputs, lambda *values: maker.expression(*_values(operands, values))


def _slots(ways: list[_Computed | None]) -> int:
    """Issue slots to compute an element of each part."""
    numbers = (Expression("scalar", attribute=f"t{i}") for i in itertools.count())
    return slots_of_values(way[1](*itertools.islice(numbers, len(way[0]))) for way in ways if way is not None)


def _is_repeated(view: View) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(view.layout.sizes, view.layout.strides, strict=True))


def _values(computed: list[_Computed], operands: tuple[Expression, ...]) -> list[Expression]:
    """Values of several parts, from the operands of all of them, one part after the other."""
    remaining = iter(operands)
    return [expression(*itertools.islice(remaining, len(views))) for views, expression in computed]


RULES = {aten.cat.default: _concatenated}
