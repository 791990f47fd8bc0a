"""Sums over rows that are known as early as they can be, and as exact. Where what is the same for all of a row is known
later than the rest, it is added after the sum, and a kernel goes over the row's elements once less. What comes of
reductions of the elements themselves (their mean or maximum) stays inside: what it takes away may be nearly all of
them. A factor stays inside, too: 0 or infinite, it makes NaN of some elements that their sum does not tell."""

from __future__ import annotations

from collections.abc import Callable

from .operations import ROW_REDUCTIONS
from .values import Value, columns, in_order, row_sum, select, varies


def early_row_sum(value: Value) -> Value:
    """``row_sum(value)``, but for rounding: what is the same for a row and made of its reductions is added after the
    sum, if the rest needs fewer of them one after the other, but some. What is added to the one element that a number
    of the row chooses always is."""
    depth: dict[int, int] = {}
    for each in in_order([value]):
        before = max((depth[id(operand)] for operand in each.operands), default=0)
        depth[id(each)] = before + (each.op in ROW_REDUCTIONS)
    where = varies(value)

    def is_of_row(part: Value) -> bool:
        return where[id(part)] <= {"rows"}

    def is_late(part: Value, rest: Value, among: Callable[[Value], Value]) -> bool:
        return is_of_row(part) and depth[id(part)] > depth[id(rest)] >= (1 if among is _all else 0)

    def chooses_one(value: Value) -> bool:
        """True for a select of something in one channel, at most, and of zero in the others."""
        if value.op != "select" or value.operands[0].op != "eq" or not _is_zero(value.operands[2]):
            return False
        one, other = value.operands[0].operands
        return any(a.op == "channel_index" and is_of_row(b) for a, b in ((one, other), (other, one)))

    def sum_of(value: Value, among: Callable[[Value], Value]) -> Value:
        """The sum of among(value), which is the value or 0, element by element."""
        if value.op == "neg":
            return -sum_of(value.operands[0], among)
        if value.op in ("add", "sub"):
            a, b = value.operands
            if is_late(b, a, among) or (is_of_row(b) and chooses_one(a)):
                times = _times(b, among)
                return sum_of(a, among) + times if value.op == "add" else sum_of(a, among) - times
            if is_late(a, b, among) or (is_of_row(a) and chooses_one(b)):
                times = _times(a, among)
                return times + sum_of(b, among) if value.op == "add" else times - sum_of(b, among)
        if chooses_one(value) and among is _all and depth[id(value.operands[0])] < depth[id(value)]:
            condition, chosen, _ = value.operands
            return sum_of(chosen, lambda each: select(condition, each, 0))
        return row_sum(among(value))

    return sum_of(value, _all)


def _all(value: Value) -> Value:
    return value


def _times(part: Value, among: Callable[[Value], Value]) -> Value:
    """The part as often as elements of a row are added up: not at all, even if it is infinite, where none is."""
    if among is _all:
        return columns() * part
    count = row_sum(among(Value("constant", attribute=1.0)))
    return select(count, count * part, 0)


def _is_zero(value: Value) -> bool:
    return value.op == "constant" and value.attribute == 0
