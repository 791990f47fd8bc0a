"""Accesses: index maps of operands that are read through maps of their axes (axis_map.py)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .axis_map import AxisMap, Row
from .digits import Digits, joined, on_axes, with_gaps, with_strides, without_strides
from .graph import View
from .layout import Layout
from .other_memory import layout_in, strides_between

_FEW_TAPS = 1.25  # of an element, on average, if most elements are chosen


class Term(NamedTuple):
    """One axis of an access: digits times strides, of the element's place in the result's memory, are its position on
    the map; the place there times the stride is part of the address."""

    digits: Digits
    map: AxisMap
    stride: int

    @property
    def elements_of_sector(self) -> int:
        """How many places of the map are in 16 adjacent elements, on average."""
        places = {place * self.stride for row in self.map.rows for place, _ in row}
        return max(1, len(places) // max(1, len({place // 16 for place in places})))


class Access(NamedTuple):
    """An index map with terms. The address of element i is the sum of i's digits times their strides, and of a place on
    each term's map; the element is the sum over the taps of all maps.

    Attributes:
        fill: bits of the fp32 number that stands for an element from nowhere. In a tuple, so that accesses and other
            index maps can be sorted.
        digits: of all elements of the result; axes with maps have stride 0.
        terms: one for each axis with a map.
    """

    fill: tuple[int]
    digits: Digits
    terms: tuple[Term, ...]

    @property
    def number(self) -> float:
        """The number that stands for an element from nowhere."""
        (number,) = struct.unpack("<f", struct.pack("<I", *self.fill))
        return number

    @property
    def elements(self) -> int:
        """Elements of the source that are read; repeated ones count once."""
        of_maps = (term.map.touched for term in self.terms if term.stride)
        return math.prod(count for _, count, stride in self.digits if stride) * math.prod(of_maps)

    @property
    def mostly_chooses(self) -> bool:
        """True if elements are sums, but most of them of one element at most, as the gradients of pads are."""
        taps = math.prod(sum(map(len, term.map.rows)) / max(1, len(term.map.rows)) for term in self.terms)
        return not self.only_chooses and taps <= _FEW_TAPS

    @property
    def only_chooses(self) -> bool:
        """True if each element is one of the source's, or comes from nowhere."""
        return all(term.map.only_chooses for term in self.terms)


def fill_bits(number: float) -> tuple[int]:
    """The number as an access has it."""
    return struct.unpack("<I", struct.pack("<f", number))


def access_of(result: Layout, source: Layout, maps: Sequence[AxisMap | None], fill: float) -> Access:
    """Access of a source with these maps of its dimensions (None: the identity), over the memory of the result, which
    is dense."""
    runs, terms, inner = [], [], 1
    for d in sorted(range(len(result.sizes)), key=lambda d: result.strides[d]):
        size, stride, axis_map = result.sizes[d], source.strides[d], maps[d]
        if axis_map is not None:
            terms.append(Term(((inner, size, 1),) if size > 1 else (), axis_map, stride))
        if size > 1:
            runs.append((size, 0 if axis_map else stride))
        inner *= size
    return Access(fill_bits(fill), joined(runs), tuple(terms))


def term_of_columns(
    channels: int, columns: Sequence[tuple[int, int]], terms: Sequence[tuple[Sequence[tuple[int, int]], Term]]
) -> Term:
    """One term for all that varies along rows of so many elements.

    Args:
        columns: counts and strides of the digits of a row, innermost first.
        terms: those of columns, and the counts and strides of their positions.
    """
    rows = []
    for column in range(channels):
        row: Row = ((_at(column, columns), 1.0),)
        for runs, term in terms:
            taps = term.map.rows[_at(column, runs)]
            row = tuple((at + place * term.stride, one * other) for at, one in row for place, other in taps)
        rows.append(row)
    size = 1 + max((place for row in rows for place, _ in row), default=0)
    return Term(((1, channels, 1),), AxisMap.of(size, rows), 1)


def _at(place: int, runs: Iterable[tuple[int, int]]) -> int:
    """The sum of a place's digits times their strides."""
    total = 0
    for count, stride in runs:
        total += place % count * stride
        place //= count
    return total


def composed(access: Access, layout: Layout, index_map: Digits, offset: int, numel: int) -> tuple[Access, int] | None:
    """Access of a result that reads the result of another access by an index map, and the elements by which its source
    begins later.

    Args:
        layout: of that other result, which is dense.
        index_map, offset: of the view of it that is read.
        numel: elements of the result that reads it.

    Returns:
        None if a digit of the index map is part of several axes in a way that no access has.
    """
    if index_map == ((1, layout.numel),) and numel == layout.numel and not offset:
        return access, 0
    digits = with_strides(index_map, numel)
    axes = zip(layout.sizes, layout.strides, strict=True)
    if (found := on_axes(axes, ((count, stride) for _, count, stride in digits), offset)) is None:
        return None
    starts, runs = found
    read: dict[int, list] = {axis: [] for axis in starts}
    for (inner, _, _), parts in zip(digits, runs, strict=True):
        for axis, count, each in parts:
            read[axis].append((inner, count, each))
            inner *= count
    return _reread(access, starts, read, numel)


def _reread(access: Access, starts: dict[int, int], read: dict[int, list], numel: int) -> tuple[Access, int]:
    """The access with other digits for each axis of its result: `read`, by the axis' stride, from `starts` on; and the
    elements by which the source begins later."""
    digits, terms, offset = [], [], 0
    for inner, count, stride in access.digits:
        for axis in [axis for axis in read if inner <= axis < inner * count]:
            offset += starts[axis] * stride * (axis // inner)
            digits += [(at, n, each * stride * (axis // inner)) for at, n, each in read[axis]]
    for term in access.terms:
        axis = term.digits[0][0] if term.digits else 0
        start = starts.get(axis, 0)
        axis_map = term.map.without_first(start) if start else term.map
        terms.append(Term(tuple(read.get(axis, ())), axis_map, term.stride))
    return Access(access.fill, with_gaps(digits, numel), tuple(terms)), offset


def relaid(access: Access, view: Layout, copy: Layout, source: Layout) -> tuple[Access, Layout] | None:
    """The access, and the view that it reads, in the memory of which that was copied.

    Args:
        view: of the copy's memory.
        copy, source: layouts of the copy and of what was copied, with equal sizes.

    Returns:
        None if a digit or a map is of no whole axes of the copy.
    """
    axes = [axis for axis in zip(copy.sizes, copy.strides, strict=True) if axis[0] > 1]
    stride_of = strides_between(copy, source)
    of_maps = [(term.map.size, term.stride) for term in access.terms]
    found = on_axes(axes, [*((count, stride) for _, count, stride in access.digits), *of_maps], view.offset)
    of_view = layout_in(view, copy, source)
    if found is None or of_view is None:
        return None
    _, runs = found
    digits = []
    for (_, count, _), parts in zip(access.digits, runs, strict=False):
        digits += [(n, stride_of[axis] * each) for axis, n, each in parts] or [(count, 0)]
    terms = []
    for term, parts in zip(access.terms, runs[len(access.digits) :], strict=True):
        if len(parts) > 1:
            return None
        terms.append(term._replace(stride=sum(stride_of[axis] * each for axis, _, each in parts)))
    return Access(access.fill, joined(digits), tuple(terms)), of_view


def operand_of_view(
    operand: View, operand_map: Digits, view: View, index_map: Digits, numel: int
) -> tuple[View, Digits] | None:
    """The part of an operand that a program reads to compute a view, also of some elements, of an operation's result.

    Args:
        operand_map: index map of the operand over the result's memory.
        index_map: by which a result of `numel` elements reads the view.

    Returns:
        A view of the operand's elements in the order of memory of the result that reads it, and its index map; None if
        no index map has them.
    """
    access = Access((0,), with_strides(operand_map, view.value.layout.numel), ())
    found = composed(access, view.value.layout, index_map, view.layout.offset, numel)
    if found is None:
        return None
    access, offset = found
    runs = [(count, stride) for _, count, stride in access.digits if stride][::-1]
    sizes, strides = tuple(count for count, _ in runs), tuple(stride for _, stride in runs)
    part = View(operand.value, Layout(sizes, strides, operand.layout.offset + offset))
    return part, without_strides(access.digits)
