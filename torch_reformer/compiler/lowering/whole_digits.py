"""Expressions of whole numbers as lists of digits (torch_reformer/program/digits.py), the lowest first."""

from __future__ import annotations

import operator
from collections.abc import Callable

from ... import program as p
from ...program import Value as Expression
from ...program.digits import COUNT, digit_of
from ...program.values import as_value
from .whole_numbers import MOST

Digits = list[Expression]


def of_constant(number: int) -> Digits:
    return [as_value(digit_of(number, i)) for i in range(1, COUNT + 1)]


def of_stored(number: Expression) -> Digits:
    """Digits of a number in memory, of any size."""
    return [p.digit(number, i) for i in range(1, COUNT + 1)]


def of_small(number: Expression) -> Digits:
    """Digits of a number that fp32 has, with all smaller ones."""
    is_negative = number < 0
    lowest = p.select(is_negative, p.minimum(number, -1) + 1 + (MOST - 1), number)
    return [lowest, p.select(is_negative, MOST - 1, 0), p.select(is_negative, -1, 0)]


def equal(x: Digits, y: Digits) -> Expression:
    result = p.equal(x[0], y[0])
    for one, other in zip(x[1:], y[1:], strict=True):
        result = p.select(p.equal(one, other), result, 0)
    return result


def different(x: Digits, y: Digits) -> Expression:
    return p.equal(equal(x, y), 0)


def ordered(compare: Callable[..., Expression], x: Digits, y: Digits) -> Expression:
    """Comparison of two numbers by the highest digits that differ, or else by the lowest."""
    result = compare(x[0], y[0])
    for one, other in zip(x[1:], y[1:], strict=True):
        result = p.select(p.equal(one, other), result, compare(one, other))
    return result


def chosen(condition: Expression, x: Digits, y: Digits) -> Digits:
    return [p.select(condition, one, other) for one, other in zip(x, y, strict=True)]


def smaller(x: Digits, y: Digits) -> Digits:
    return chosen(ordered(operator.lt, x, y), x, y)


def larger(x: Digits, y: Digits) -> Digits:
    return chosen(ordered(operator.lt, x, y), y, x)


def clamped(x: Digits, least: Digits | None = None, most: Digits | None = None) -> Digits:
    x = x if least is None else larger(x, least)
    return x if most is None else smaller(x, most)
