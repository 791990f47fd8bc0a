"""Row sums that are available as early as possible without losing accuracy. A per-row term that is available later than
the rest is added after the sum, so that a kernel passes over the row's elements once less. Terms that derive from
reductions of the elements themselves (mean, maximum) stay inside: subtracting them may cancel nearly all of the
elements. Factors stay inside, too: a factor of 0 or infinity turns some elements into NaN, which their sum does not
show."""

from __future__ import annotations

from collections.abc import Callable

from .operations import OF_ROWS
from .values import Value, columns, in_order, row_sum, select, varies


def early_row_sum(value: Value) -> Value:
    """``row_sum(value)`` up to rounding, with per-row terms added after the sum where that makes it available earlier.
    A per-row term made of reductions is moved out if the rest depends on a shorter chain of reductions, but on at least
    one. A term added to the single element that a per-row number selects is always moved out."""
    depth: dict[int, int] = {}
    for node in in_order([value]):
        before = max((depth[id(operand)] for operand in node.operands), default=0)
        depth[id(node)] = before + (node.op in OF_ROWS)
    where = varies(value)

    def is_of_row(term: Value) -> bool:
        return where[id(term)] <= {"rows"}

    def is_late(term: Value, rest: Value, among: Callable[[Value], Value]) -> bool:
        return is_of_row(term) and depth[id(term)] > depth[id(rest)] >= (1 if among is _all else 0)

    def chooses_one(value: Value) -> bool:
        """True for a select of a value in at most one channel, and of zero in all others."""
        if value.op != "select" or value.operands[0].op != "eq" or not _is_zero(value.operands[2]):
            return False
        one, other = value.operands[0].operands
        return any(a.op == "channel_index" and is_of_row(b) for a, b in ((one, other), (other, one)))

    def sum_of(value: Value, among: Callable[[Value], Value]) -> Value:
        """Row sum of among(value), which is the value or 0 for each element."""
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
            return sum_of(chosen, lambda node: select(condition, node, 0))
        return row_sum(among(value))

    return sum_of(value, _all)


def _all(value: Value) -> Value:
    return value


def _times(term: Value, among: Callable[[Value], Value]) -> Value:
    """Per-row term times the number of elements that are added up; 0 if there are none, even if the term is
    infinite."""
    if among is _all:
        return columns() * term
    count = row_sum(among(Value("constant", attribute=1.0)))
    return select(count, count * term, 0)


def _is_zero(value: Value) -> bool:
    return value.op == "constant" and value.attribute == 0
