"""Comparisons of whole numbers that fp32 may not have, digit by digit (torch_reformer/program/digits.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ... import program as p
from ...program import Value as Expression
from ...program.digits import COUNT, digit_of
from ..ir.graph import Graph, View
from . import pointwise
from .whole_numbers import WHOLE

Rule = Callable[..., View | None]
_IF_DIFFERENT = {"eq": 0.0, "ne": 1.0}  # the others compare the highest digits that differ


def _wraps(view: View, other) -> bool:
    """True if PyTorch casts the other operand to a narrower type of whole numbers: a number has no type of its own."""
    dtype = view.value.dtype
    if dtype not in WHOLE:
        return False
    if isinstance(other, View):
        is_number = not other.layout.sizes and view.layout.sizes
        return bool(is_number) and other.value.dtype in WHOLE and other.value.dtype.itemsize > dtype.itemsize
    limits = torch.iinfo(dtype)
    return isinstance(other, int) and not limits.min <= other <= limits.max


def _digits(operand: Expression | int) -> list:
    """Digits of a stored whole number, or of a constant; the lowest comes first."""
    of = digit_of if isinstance(operand, int) else p.digit
    return [of(operand, number) for number in range(1, COUNT + 1)]


def _by_digits(name: str, compare: Callable[..., Expression], x: Expression, y: Expression | int) -> Expression:
    """Comparison of whole numbers by their highest digits that differ."""
    (low_x, *higher_x), (low_y, *higher_y) = _digits(x), _digits(y)
    result = compare(low_x, low_y)
    for one, other in zip(higher_x, higher_y, strict=True):
        result = p.select(p.equal(one, other), result, _IF_DIFFERENT.get(name, compare(one, other)))
    return result


def _compared(target, rule: Rule, graph: Graph, value: Tensor, x: View, y) -> View | None:
    """Rule of a comparison, which is `rule` where programs have all numbers."""
    if _wraps(x, y) or (isinstance(y, View) and _wraps(y, x)):
        return None
    if (result := rule(graph, value, x, y)) is not None:
        return result
    are_whole = x.value.dtype in WHOLE and (y.value.dtype in WHOLE if isinstance(y, View) else type(y) is int)
    if not are_whole:
        return None
    name = target._schema.name.split("::")[1]
    by_digits = functools.partial(_by_digits, name, pointwise.EXPRESSIONS[target])
    return pointwise.rule_of(target, by_digits)(graph, value, x, y)


RULES = {target: functools.partial(_compared, target, pointwise.RULES[target]) for target in pointwise.COMPARISONS}
