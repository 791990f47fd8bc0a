"""Operands that are whole numbers of any size, as digits. Where PyTorch only chooses them among others, as clamps do, a
program reads these others instead of the result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..ir.graph import Call, Graph, Map, Value, View
from ..ir.layout import Layout
from . import whole_digits
from .pointwise import expanded
from .whole_numbers import WHOLE, range_of

aten = torch.ops.aten
_MOST_INPUTS = 4  # that a program reads instead of one

CHOICES: dict[Callable, Callable] = {
    aten.where.self: whole_digits.chosen,
    aten.maximum.default: whole_digits.larger,
    aten.minimum.default: whole_digits.smaller,
    aten.clamp.default: whole_digits.clamped,
    aten.clamp.Tensor: whole_digits.clamped,
    aten.clamp_min.default: whole_digits.larger,
    aten.clamp_min.Tensor: whole_digits.larger,
    aten.clamp_max.default: whole_digits.smaller,
    aten.clamp_max.Tensor: whole_digits.smaller,
    aten._to_copy.default: lambda x: x,
    aten.scalar_tensor.default: lambda x: x,
}
_CASTS = aten._to_copy.default, aten.scalar_tensor.default  # whose keyword arguments are types


class Whole(NamedTuple):
    """Whole numbers by their digits.

    Attributes:
        inputs: views that a program reads.
        digits: list of digits, of the inputs' expressions.
    """

    inputs: list[View]
    digits: Callable


def whole(graph: Graph, operand: View | int) -> Whole:
    """The operand of an operation as digits."""
    if not isinstance(operand, View):
        return Whole([], lambda: whole_digits.of_constant(operand))
    if range_of(graph, operand).is_exact:
        return Whole([operand], whole_digits.of_small)
    return _chosen(graph, operand) or Whole([operand], whole_digits.of_stored)


def fits(graph: Graph, operand, dtype: torch.dtype) -> bool:
    """True if the operand has whole numbers, which a cast to this type does not change."""
    if isinstance(operand, View):
        own, is_exact = operand.value.dtype, range_of(graph, operand).is_exact
        if not is_exact and isinstance(operand.value.maker, Map):
            return False  # a program may compute it, from symbols, where it is read, and only inputs have digits
        return own in (*WHOLE, torch.bool) and (own.itemsize <= dtype.itemsize or is_exact)
    limits = torch.iinfo(dtype)
    return is_integer(operand) and limits.min <= operand <= limits.max


def is_integer(number) -> bool:
    """True for an integer that is not computed of symbols."""
    return type(number) in (int, bool)


def _chosen(graph: Graph, view: View) -> Whole | None:
    """The view by what its elements were chosen among; None if it has to be read."""
    result, call = view.value, view.value.maker
    if not isinstance(call, Call) or call.operator not in CHOICES or result.dtype not in WHOLE:
        return None
    if call.kwargs and call.operator not in _CASTS:
        return None
    operands = [_as_read(arg, result.layout, view) if isinstance(arg, View) else arg for arg in call.args]
    of_where = 1 if call.operator is aten.where.self else 0
    parts: list[Whole | None] = [Whole([each], lambda x: x) for each in operands[:of_where] if each is not None]
    for arg, operand in zip(call.args[of_where:], operands[of_where:], strict=True):
        if arg is not None and not fits(graph, operand, result.dtype):
            return None
        parts.append(None if arg is None else whole(graph, operand))
    inputs = [each for part in parts if part for each in part.inputs]
    are_there = len(parts) == len(operands) and all(each.value.device == result.device for each in inputs)
    if not are_there or len(inputs) > _MOST_INPUTS or _is_written(graph, call, inputs):
        return None
    return Whole(inputs, lambda *values: CHOICES[call.operator](*_each(parts, values)))


def _each(parts: Sequence[Whole | None], values) -> list:
    """The digits of each part, of the expressions of all inputs; None for an argument that is left out."""
    remaining = iter(values)
    return [part and part.digits(*itertools.islice(remaining, len(part.inputs))) for part in parts]


def _as_read(operand: View, result: Layout, view: View) -> View | None:
    """The operand's elements of which the operation computed those of a view of its result; None if these are not
    along dimensions of the result."""
    operand = expanded(operand, result.sizes)
    stride_of = {
        stride: (size, of_operand)
        for size, stride, of_operand in zip(result.sizes, result.strides, operand.layout.strides, strict=True)
        if size > 1
    }
    strides = []
    for size, stride in zip(view.layout.sizes, view.layout.strides, strict=True):
        # Once: elements of a window, along two dimensions with one stride, may lie beyond the result's dimension.
        along, of_operand = stride_of.pop(stride, (0, 0)) if size > 1 and stride else (1, 0)
        if not along or (stride and size > along):
            return None
        strides.append(of_operand)
    if view.layout.offset:
        return None
    return View(operand.value, Layout(view.layout.sizes, tuple(strides), operand.layout.offset))


def _is_written(graph: Graph, call: Call, inputs: list[View]) -> bool:
    """True if an operation after the call writes what it has read."""
    later = itertools.takewhile(lambda operation: operation is not call, reversed(graph.operations))
    written: set[Value] = {value for operation in later for value in operation.writes}
    return any(each.value in written for each in inputs)
