"""Which computations of whole numbers programs do exactly.

A program's numbers are fp32, which has all whole numbers of less than MOST. Larger ones are rounded when they are read;
rounding keeps their order, so they still compare as they should with numbers of less than MOST. Two of them are
compared by their digits (whole_comparisons.py), which fp32 has. Whatever may be rounded otherwise stays a call of
PyTorch's: no value is guessed to be small.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ... import program as p
from ...program import Value as Expression
from ...program.digits import BITS, DigitOf
from ...program.operations import COMPARISONS
from ...program.values import in_order
from ..ir.fake_tensors import real_tensors
from ..ir.graph import Graph, Indexed, Map, View
from . import functions as f

WHOLE = torch.int64, torch.int32  # types of whole numbers that programs read and store
MOST = 2**BITS


class Range(NamedTuple):
    """Bounds of a value's elements. is_exact: fp32 has each of them; else they are rounded when they are read."""

    least: float
    most: float
    is_exact: bool

    @property
    def is_small(self) -> bool:
        return -MOST < self.least and self.most < MOST


_TRUTHS, _FLOATS, _UNKNOWN = Range(0, 1, True), Range(-math.inf, math.inf, True), Range(-math.inf, math.inf, False)
_DIGITS = Range(-(2**15), MOST - 1, True)


def from_float(number: Expression, dtype: torch.dtype, device: torch.device) -> Expression:
    """A number rounded towards zero, as the whole number that it is cast to. PyTorch leaves open what becomes of NaN
    and of what is beyond the type's range: here as its kernels do on x86 (the least number), or on GPUs the last number
    of fp32 within the range, and 0 for NaN."""
    end, whole = 2.0 ** (torch.iinfo(dtype).bits - 1), f.trunc(number)
    if device.type == "cpu":
        return p.select(whole < end, p.select(whole >= -end, whole, -end), -end)
    return p.select(f.is_nan(whole), 0, p.clip(whole, -end, end - end / MOST))


def without_sign_of_zero(result: Expression) -> Expression:
    """An expression of whole numbers, whose zeros have no sign."""
    return result + 0.0 if any(node.op in _SIGNED for node in in_order([result])) else result


def range_of(graph: Graph, view: View) -> Range:
    """Range of a view's elements, from its data type and from what made it."""
    value, maker = view.value, view.value.maker
    if value.dtype == torch.bool:
        return _TRUTHS
    if value.dtype not in WHOLE:
        return _FLOATS
    if value in graph.bounds:
        return Range(*graph.bounds[value])
    found = _UNKNOWN
    if (constant := graph.constants.get(value)) is not None and constant.numel():
        with real_tensors():
            found = _small(Range(constant.min().item(), constant.max().item(), True))
    elif isinstance(maker, Indexed) and maker.only_chooses:
        (source,) = maker.inputs
        found = _union(range_of(graph, source), Range(maker.fill, maker.fill, True))
    elif isinstance(maker, Map) and not isinstance(maker, Indexed):
        found = exact_range(graph, maker.expression, maker.inputs) or _UNKNOWN
    graph.bounds[value] = found
    return found


def note_range(graph: Graph, view: View, least: float, most: float) -> None:
    """Note the least and the most that an element of a view of whole numbers can be."""
    graph.bounds[view.value] = _small(Range(least, most, True))


def exact_range(graph: Graph, expression, inputs: list[View]) -> Range | None:
    """Range of an expression of whole numbers; None if a program may compute others than PyTorch."""
    leaves = [p.full(f"x{i}") for i in range(len(inputs))]
    known = {id(leaf): range_of(graph, view) for leaf, view in zip(leaves, inputs, strict=True)}
    result = p.values.as_value(expression(*leaves))
    if any(view.value.dtype.is_floating_point for view in inputs):
        return _FLOATS  # of a cast, rounded towards zero
    for node in in_order([result]):
        if id(node) not in known:
            found = _result(node, [known[id(operand)] for operand in node.operands])
            if found is None:
                return None
            known[id(node)] = found
    return known[id(result)]


def _result(node: Expression, operands: list[Range]) -> Range | None:
    """Range of an operation's result; None if it is not that of whole numbers."""
    if isinstance(node.attribute, DigitOf):
        return _DIGITS
    if node.op == "constant":
        number = node.attribute
        return _small(Range(number, number, True)) if isinstance(number, (int, float)) else None
    if node.op in COMPARISONS:
        are_exact = all(of.is_exact for of in operands) or any(of.is_small for of in operands)
        return _TRUTHS if are_exact else None
    if node.op == "select":
        return _union(*operands[1:])
    if node.op in _ORDERED:  # which a rounded number passes through unless it is bounded
        bound = _ORDERED[node.op]
        least, most = bound(*(of.least for of in operands)), bound(*(of.most for of in operands))
        return Range(least, most, all(of.is_exact for of in operands) or Range(least, most, True).is_small)
    if node.op not in _COMPUTED or not all(of.is_exact for of in operands):
        return None
    ends = [_COMPUTED[node.op](*corner) for corner in _corners(operands)]
    return None if any(map(math.isnan, ends)) else _small(Range(min(ends), max(ends), True))


_SIGNED = {"neg", "mul", "floor", "round"}  # which give -0, too
_ORDERED = {"maximum": max, "minimum": min, "relu": lambda x: max(x, 0)}
_COMPUTED = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "floor": lambda x: x,
    "round": lambda x: x,
}


def _corners(operands: list[Range]):
    if len(operands) == 1:
        return [(end,) for end in operands[0][:2]]
    return [(x, y) for x in operands[0][:2] for y in operands[1][:2]]


def _union(one: Range, other: Range) -> Range:
    return Range(min(one.least, other.least), max(one.most, other.most), one.is_exact and other.is_exact)


def _small(range_: Range) -> Range:
    """The range of whole numbers; they are exact if they are small."""
    return range_._replace(is_exact=range_.is_small and range_.least == math.floor(range_.least))
