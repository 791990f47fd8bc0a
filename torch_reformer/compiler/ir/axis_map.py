"""Maps of one axis: sparse matrices that say which elements of a source's axis make each element of a result's.

Pads, rolls, flips, pools and upsamplings are one such matrix for each of their axes. The gradient is the transposed
matrix, and two operators after another are the product of their matrices."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable

Row = tuple[tuple[int, float], ...]  # taps of an element: places of the source's axis in ascending order, and weights


@functools.total_ordering
class AxisMap:
    """A sparse matrix [elements of the result's axis, elements of the source's axis]. Equal ones are one object; get
    them by :meth:`of`.

    Attributes:
        size: elements of the source's axis.
        rows: taps of each element of the result's axis; an element without taps comes from nowhere.
    """

    def __init__(self, size: int, rows: tuple[Row, ...]):
        self.size, self.rows = size, rows
        self.taps = max((len(row) for row in rows), default=0)
        self.has_weights = any(weight != 1 for row in rows for _, weight in row)
        self.touched = len({place for row in rows for place, _ in row})

    @staticmethod
    def of(size: int, rows: Iterable[Row]) -> AxisMap:
        """The map of these rows."""
        key = size, tuple(rows)
        if (known := _known.get(key)) is None:
            known = _known[key] = AxisMap(*key)
        return known

    @staticmethod
    def choosing(size: int, places: Iterable[int]) -> AxisMap:
        """The map whose elements are each the element at one place; a place outside of the source is nowhere."""
        return AxisMap.of(size, (((place, 1.0),) if 0 <= place < size else () for place in places))

    def __lt__(self, other: AxisMap) -> bool:
        return (self.size, self.rows) < (other.size, other.rows)

    @property
    def only_chooses(self) -> bool:
        """True if each element is one of the source's, or comes from nowhere."""
        return self.taps <= 1 and not self.has_weights

    @property
    def has_gaps(self) -> bool:
        """True if an element comes from nowhere."""
        return not all(self.rows)

    @property
    def is_identity(self) -> bool:
        """True if the result is the source."""
        return len(self.rows) == self.size and all(row == ((i, 1.0),) for i, row in enumerate(self.rows))

    def then(self, outer: AxisMap) -> AxisMap:
        """The map of this one, and of another one after it."""
        return AxisMap.of(self.size, (_sum((weight, self.rows[place]) for place, weight in row) for row in outer.rows))

    def transposed(self) -> AxisMap:
        """The map of the gradient."""
        columns: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for i, row in enumerate(self.rows):
            for place, weight in row:
                columns[place].append((i, weight))
        return AxisMap.of(len(self.rows), map(tuple, columns))

    def times(self, factor: float) -> AxisMap:
        """The map with all weights multiplied by a factor."""
        return AxisMap.of(self.size, (tuple((place, weight * factor) for place, weight in row) for row in self.rows))

    def without_first(self, count: int) -> AxisMap:
        """The map without the first elements of the result."""
        return AxisMap.of(self.size, self.rows[count:])


_known: weakref.WeakValueDictionary[tuple, AxisMap] = weakref.WeakValueDictionary()


def _sum(weighted: Iterable[tuple[float, Row]]) -> Row:
    """Sum of rows times weights; a place whose weights cancel stays away."""
    total: dict[int, float] = {}
    for factor, row in weighted:
        for place, weight in row:
            total[place] = total.get(place, 0.0) + factor * weight
    return tuple(sorted((place, weight) for place, weight in total.items() if weight))
