"""Index maps by which kernels write copies that are read through maps of axes, as rolled windows are.

A kernel that computes rows can store each at the place where the copy has it. The rows' places are a table
(csrc/program/targets.h). Zeros, which a copy with pads has beside the rows, are shared out among all rows."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .access import Access, Term, fill_bits
from .axis_map import AxisMap, Row
from .digits import Digits, Run, with_gaps

MOST_TARGETS = 4  # of a row
_MOST_POSITIONS = 1 << 16  # in a table
_ZERO, _MARK = fill_bits(0.0), (-1,)


class Targets(NamedTuple):
    """Where a kernel stores each element of its result in a copy: the sum of its digits times their strides, and of the
    places that the table has for its position, which is made of other digits.

    Attributes:
        mark: sorts these among other index maps.
        places: of each position, those of a row, with weight 1, and those of zeros, with weight 0.
    """

    mark: tuple[int]
    digits: Digits
    positions: Digits
    places: AxisMap

    @property
    def are_bijective(self) -> bool:
        """True if the copy has each row once, and nothing else."""
        return all(len(row) == 1 and row[0][1] == 1 for row in self.places.rows)

    @property
    def have_zeros(self) -> bool:
        """True if the copy has zeros beside the rows."""
        return self.places.has_weights


@functools.lru_cache(1 << 10)
def targets_of(access: Access, source: int, numel: int) -> Targets | None:
    """Address of each element of a source in a copy that reads the source by `access`.

    Args:
        source, numel: elements of the dense source, and of the copy.

    Returns:
        None if elements are summed or repeated along digits, if no rows of adjacent elements stay so, if pads are not
        zeros, or if the table would be too large.
    """
    digits = [digit for digit in access.digits if digit[2] and digit[1] > 1]
    read = [digit for term in access.terms for digit in term.digits]
    axes = [(stride, count) for _, count, stride in digits]
    axes += [(term.stride, term.map.size) for term in access.terms if term.map.size > 1]
    if not access.only_chooses or access.fill != _ZERO or (1, 1) not in ((digit[0], digit[2]) for digit in digits):
        return None
    if not _cover((digit[:2] for digit in (*digits, *read)), numel) or not _cover(axes, source):
        return None
    terms = sorted(access.terms, key=lambda term: term.stride)
    positions = math.prod(term.map.size for term in terms)
    places = math.prod(digit[1] for digit in read)
    if positions > _MOST_POSITIONS or places > positions * MOST_TARGETS or (rows := _table(terms)) is None:
        return None
    size = 1 + max((place for row in rows for place, _ in row), default=0)
    written = with_gaps([(stride, count, inner) for inner, count, stride in digits], source)
    return Targets(_MARK, written, _digits(terms), AxisMap.of(size, rows))


def _cover(axes: Iterable[Run], numel: int) -> bool:
    """True if these axes, given by strides and counts, are all of a dense tensor's, each once."""
    expected = 1
    for stride, count in sorted(axis for axis in axes if axis[1] > 1):
        if stride != expected:
            return False
        expected *= count
    return expected == numel


def _digits(terms: Iterable[Term]) -> Digits:
    """Digits of the source's index that make a position of the table; the innermost axis comes first."""
    found: list[tuple[int, int, int]] = []
    position = 1
    for term in terms:
        if term.map.size == 1:
            continue
        if found and term.stride == found[-1][0] * found[-1][1]:
            found[-1] = found[-1][0], found[-1][1] * term.map.size, found[-1][2]
        else:
            found.append((term.stride, term.map.size, position))
        position *= term.map.size
    return tuple(found)


def _table(terms: Iterable[Term]) -> tuple[Row, ...] | None:
    """Targets of each position; None if there are too many of one."""
    of_axes = [_of_axis(term) for term in terms]
    rows: list[list[tuple[int, float]]] = [
        [(sum(places), 1.0) for places in itertools.product(*of_position)]
        for of_position in itertools.product(*(rows for rows, _ in reversed(of_axes)))
    ]
    for row, place in zip(itertools.cycle(rows), _from_nowhere(of_axes), strict=False):
        row.append((place, 0.0))
    return None if max(map(len, rows)) > MOST_TARGETS else tuple(map(tuple, rows))


def _from_nowhere(of_axes: Iterable[tuple[Sequence[list[int]], list[int]]]) -> list[int]:
    """Places of the copy's rows that come from nowhere on any axis."""
    known, nowhere = [0], []
    for rows, beside in of_axes:
        within = [place for row in rows for place in row]
        nowhere = [a + b for a in nowhere for b in (*within, *beside)] + [a + b for a in known for b in beside]
        known = [a + b for a in known for b in within]
    return nowhere


def _of_axis(term: Term) -> tuple[list[list[int]], list[int]]:
    """Places of the copy that read each element of a term's axis, and those that come from nowhere: of each, the part
    of the address that follows from the axis."""
    rows: list[list[int]] = [[] for _ in range(term.map.size)]
    from_nowhere = []
    steps = [[(i * stride, i * inner) for i in range(count)] for inner, count, stride in term.digits]
    for parts in itertools.product(*steps):
        position, place = (sum(numbers) for numbers in zip(*parts, strict=True)) if parts else (0, 0)
        taps = term.map.rows[position]
        (rows[taps[0][0]] if taps else from_nowhere).append(place)
    return rows, from_nowhere
