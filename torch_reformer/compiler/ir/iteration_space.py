"""What an element-wise operation's operands are to a program, by where their elements lie in memory.

All that a program reads and writes for each element has its elements in one order: that of memory. Seen so, sizes and
permutations of dimensions don't matter, and an operand that is broadcast repeats by a rule: element i of the result
needs the operand's element (i // inner) % count. Such a pair (inner, count) is a digit of the index; an operand has
one for each run of adjacent dimensions in which it varies.

An operand whose elements lie in another order, or apart, is placed: it has a digit for each run of dimensions, with the
stride, the elements of memory from one of its values to the next. Such a triple is (inner, count, stride). Programs
read it where it is if its rows are those of the result, in whatever order, or parts of them; kernels of GPUs read and
write also what is transposed: elements of successive rows are adjacent there, in place of a row's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .graph import Map, Random, View
from .layout import Layout

IndexMap = tuple[tuple[int, ...], ...]
BY_PLACE: IndexMap = ((-1, 1),)  # of a key: each element has a random number of its own
# Rows as long as a GPU's kernel has in registers, so that what is added up over rows is, too (stitch_launch.h);
# and as many as keep its processors busy.
LONGEST_ROW, _MANY_ROWS = 4096, 64
# IndexMap of a placed operand's line and column that kernels know (csrc/program/placement.h), and adjacent elements that
# they read at once.
MOST_OF_LINE, _OF_COLUMN, _ADJACENT = 4, 2, 8
# Rows and columns of what is transposed: so many adjacent ones at least, a multiple of which are.
_LEAST_TRANSPOSED, _OF_TRANSPOSED = 8, 4


def index_map_of(result: Layout, operand: Layout) -> IndexMap:
    """How an operand of the result's sizes varies over the result's memory, which is dense."""
    inner = expected = 1
    index_map: list[tuple[int, int]] = []
    joined = False
    for d in sorted(range(len(result.sizes)), key=lambda d: result.strides[d]):
        size, stride = result.sizes[d], operand.strides[d]
        if size == 1:
            continue
        varies = stride != 0
        if varies:
            if stride != expected:
                return _strided(result, operand)
            expected *= size
            if joined:
                index_map[-1] = index_map[-1][0], index_map[-1][1] * size
            else:
                index_map.append((inner, size))
        joined = varies
        inner *= size
    return tuple(index_map)


def result_maps(layout: Layout) -> set[IndexMap]:
    """Where the elements of a result lie that leave some of its memory out; nothing for others."""
    return set() if layout.is_dense else {index_map_of(layout.packed, layout)}


def _strided(result: Layout, operand: Layout) -> IndexMap:
    dims = sorted(range(len(result.sizes)), key=lambda d: result.strides[d])
    return joined((result.sizes[d], operand.strides[d]) for d in dims if result.sizes[d] != 1)


def joined(runs: Iterable[tuple[int, int]]) -> IndexMap:
    """IndexMap with strides of counts and strides, the innermost first: those that go on with the one before are one."""
    found: list[tuple[int, int, int]] = []
    inner = 1
    for count, stride in runs:
        if found and stride == found[-1][1] * found[-1][2]:
            found[-1] = found[-1][0], found[-1][1] * count, found[-1][2]
        else:
            found.append((inner, count, stride))
        inner *= count
    return tuple(found)


def is_strided(index_map: IndexMap) -> bool:
    return bool(index_map) and len(index_map[0]) == 3


def with_strides(index_map: IndexMap, numel: int) -> IndexMap:
    """The same as a placed operand's, of a result of so many elements: what has fewer repeats."""
    runs, expected, end = [], 1, 1
    for inner, count, *stride in index_map:
        runs += [(inner // end, 0)] if inner > end else []
        runs.append((count, stride[0] if stride else expected))
        expected *= count
        end = inner * count
    return joined([*runs, (numel // end, 0)] if numel > end else runs)


def inverse(index_map: IndexMap) -> IndexMap | None:
    """For index map of a placed operand that has each of its memory's elements once: those of the result's elements over
    that memory. None for others."""
    expected, runs = 1, []
    for inner, count, stride in sorted(index_map, key=lambda digit: digit[2]):
        if stride != expected:
            return None
        runs.append((count, inner))
        expected *= count
    return joined(runs)


def operand_maps(operation: Map) -> list[tuple[View, IndexMap]]:
    """How an operation's operands vary over its result's memory."""
    if isinstance(operation, Random):
        return [(view, BY_PLACE) for view in operation.inputs]
    layout = operation.results[0].layout
    return [(view, index_map_of(layout, view.layout)) for view in operation.inputs]


def without(layout: Layout, dims: Iterable[int]) -> IndexMap:
    """The index map of what has one element for all that differ only in these dimensions."""
    dims = set(dims)
    left = [0 if d in dims else stride for d, stride in enumerate(layout.strides)]
    # Its elements lie side by side, in the order of memory.
    expected = 1
    for d in sorted(range(len(left)), key=lambda d: layout.strides[d]):
        if left[d] and layout.sizes[d] != 1:
            left[d] = expected
            expected *= layout.sizes[d]
    return index_map_of(layout, Layout(layout.sizes, tuple(left)))


def _are_read(columns: list[tuple[int, int]]) -> bool:
    """Whether a program reads the columns of a row that have these counts and strides."""
    count, stride = columns[0]
    return stride == 1 and len(columns) <= _OF_COLUMN and (len(columns) == 1 or count % _ADJACENT == 0)


def _are_transposed(columns: list[tuple[int, int]], lines: list[tuple[int, int]]) -> bool:
    """Whether a kernel reads and writes adjacent elements of successive rows, with these counts and strides."""
    if len(columns) != 1 or not lines or columns[0][1] < 2 or lines[0][1] != 1:
        return False
    return all(count >= _LEAST_TRANSPOSED and count % _OF_TRANSPOSED == 0 for count in (columns[0][0], lines[0][0]))


@dataclass(frozen=True)
class IterationSpace:
    """The result that a program runs over: [images, channels, height, width], in NHWC's order of memory or NCHW's."""

    images: int
    channels: int
    height: int
    width: int
    nhwc: bool

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @functools.cached_property
    def numel(self) -> int:
        return self.images * self.channels * self.pixels

    @property
    def layout(self) -> Layout:
        n, c, h, w = sizes = (self.images, self.channels, self.height, self.width)
        strides = (h * w * c, 1, w * c, c) if self.nhwc else (c * h * w, h * w, w, 1)
        return Layout(sizes, strides)

    @property
    def channel_map(self) -> IndexMap:
        return ((1 if self.nhwc else self.pixels, self.channels),)

    @property
    def plane_map(self) -> IndexMap | None:
        """None if planes are channels, or elements."""
        c, p, n = self.channels, self.pixels, self.images
        if min(c, p, n) == 1:
            return None
        return ((1, c), (c * p, n)) if self.nhwc else ((p, c * n),)

    def kind(self, index_map: IndexMap) -> str | None:
        """What an operand is to a program here: full, transposed, channel, row, plane, scalar or random."""
        if (found := self.dense_kind(index_map)) is not None:
            return found
        placement = self.placement(index_map)
        if placement is None or placement.numel != self.numel:
            return None if placement is None else "row"
        return "full" if placement.strides[-1] == 1 or self.channels == 1 else "transposed"

    def dense_kind(self, index_map: IndexMap) -> str | None:
        """The same of what is handed over without a placement."""
        c, p, n = self.channels, self.pixels, self.images
        if index_map == BY_PLACE:  # programs have places in channels_last order
            return "random" if self.nhwc or c == 1 or p == 1 else None
        if self.numel == 1 or index_map == ((1, self.numel),):
            return "full"
        if not index_map:
            return "scalar"
        if index_map == self.channel_map:
            return "channel"
        if index_map == self.plane_map:
            return "plane"
        rows = ((c, n * p),) if self.nhwc else tuple(each for each in ((1, p), (p * c, n)) if each[1] != 1)
        return "row" if index_map == rows else None

    def is_strided(self, index_map: IndexMap) -> bool:
        """Whether an operand is handed over by its placement."""
        return self.dense_kind(index_map) is None and self.placement(index_map) is not None

    @functools.lru_cache(1 << 14)  # noqa: B019  a space is two numbers and a few
    def placement(self, index_map: IndexMap) -> Layout | None:
        """The layout in which a placed operand is handed over: the dimensions run through the elements, or the rows if
        it is the same in each of a row's, in the order of the result's memory. They are more than four: operators know
        it by that. None if no program reads it."""
        if not self.nhwc or self.channels == 1 or index_map == BY_PLACE:
            return None
        columns, lines, inner = [], [], 1
        found = with_strides(index_map, self.numel)
        if found[-1][0] * found[-1][1] != self.numel:
            return None
        for _, count, stride in found:
            within = min(count, max(1, self.channels // inner))
            if inner < self.channels and (count % within or (within < count and inner * within != self.channels)):
                return None  # it goes across the end of a row
            columns += [(within, stride)] if within > 1 else []
            lines += [(count // within, within * stride)] if within < count else []
            inner *= count
        is_row = all(stride == 0 for _, stride in columns)
        is_read = is_row or _are_read(columns) or _are_transposed(columns, lines)
        if len(lines) > MOST_OF_LINE or not is_read:
            return None
        dims = [*([] if is_row else columns), *lines]
        dims += [(1, 0)] * (5 - len(dims))
        return Layout(tuple(count for count, _ in reversed(dims)), tuple(stride for _, stride in reversed(dims)))

    def sizes_of(self, kind: str) -> tuple[int, ...]:
        return {
            "full": self.layout.sizes,
            "channel": (self.channels,),
            "row": (self.images, self.height, self.width),
            "plane": (self.images, self.channels),
            "scalar": (),
            "random": (1,),
        }[kind]

    def layout_of(self, kind: str, offset: int = 0) -> Layout:
        if kind == "full":
            return Layout(self.layout.sizes, self.layout.strides, offset)
        sizes = self.sizes_of(kind)
        return Layout(sizes, tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes))), offset)


def shaped(
    space: IterationSpace, layouts: Iterable[Layout], operands: set[IndexMap], reductions: set[IndexMap]
) -> IterationSpace:
    """The same space in the sizes of one of the tensors, if one has these elements in four dimensions: so it need not
    be viewed in others."""
    free = space.images == space.channels == 1 and not space.nhwc  # of no operand that is broadcast
    for layout in layouts:
        if len(layout.sizes) != 4 or layout.numel != space.numel:
            continue
        n, c, h, w = layout.sizes
        for nhwc in (True, False):
            same = (n * h * w, c, nhwc) == (space.images * space.pixels, space.channels, space.nhwc)
            if not nhwc:
                same = same and n == space.images
            found = IterationSpace(n, c, h, w, nhwc)
            if not (same or free) or min(c, h * w) == 1 or layout.strides != found.layout.strides:
                continue
            if fits(found, operands, reductions, transposes=True):
                return found
    return space


def reduces_rows(numel: int, index_map: IndexMap | None) -> bool:
    """Whether what has these index map is better reduced row by row, so that the result is known while the row's elements
    are at hand: there are enough rows for a processor, or they are short."""
    if not index_map or len(index_map) > 1:
        return False
    ((inner, count),) = index_map
    return inner > 1 and inner * count == numel and (count >= _MANY_ROWS or inner <= LONGEST_ROW)


def fits(
    space: IterationSpace,
    operands: Iterable[IndexMap],
    reductions: Collection[IndexMap],
    whole_rows: bool = True,
    transposes: bool = False,
) -> bool:
    """Whether operands of these index map are what programs know, and what is reduced is reduced to channels, to one
    number, or, if whole rows are at hand (they are not behind a convolution), row by row or plane by plane. turns:
    whether operands may be transposed; where rows are reduced they may not."""
    kinds = {space.kind(each) for each in operands}
    if None in kinds or ("transposed" in kinds and not transposes):
        return False
    if not whole_rows and any(map(space.is_strided, operands)):
        return False
    row = [each for each in reductions if whole_rows and reduces_rows(space.numel, each)]
    others = [each for each in reductions if each not in row]
    if any(space.dense_kind(each) != "row" for each in row) or (row and "transposed" in kinds):
        return False
    if any(each and space.dense_kind(each) not in ("channel", "plane") for each in others):
        return False
    if (row or not whole_rows) and space.plane_map in (*operands, *others):
        return False
    return not (row and others) or space.channels <= LONGEST_ROW


def find_space(
    numel: int, operands: set[IndexMap], reductions: set[IndexMap], transposes: bool = False
) -> IterationSpace | None:
    """One that fits these, if there is one: with rows as they are reduced, or as an operand has them; of placed ones
    last."""

    def last(index_map: IndexMap):
        return index_map not in reductions, is_strided(index_map), -len(index_map), index_map

    for index_map in sorted(reductions | operands, key=last):
        for space in _spaces(numel, index_map):
            if fits(space, operands, reductions, transposes=transposes):
                return space
    plain = IterationSpace(1, 1, numel, 1, False)
    return plain if fits(plain, operands, reductions) else None


def _spaces(numel: int, index_map: IndexMap):
    if not index_map or index_map in (BY_PLACE, ((1, numel),)):
        return
    inner, count = index_map[0][:2]
    if is_strided(index_map):  # rows are some of its index map
        for each in index_map[1::-1]:
            yield IterationSpace(1, each[0] * each[1], numel // (each[0] * each[1]), 1, True)
    elif len(index_map) == 2 and inner == 1:
        images = index_map[1][1]
        yield IterationSpace(images, count, numel // (count * images), 1, True)
        yield IterationSpace(images, numel // (count * images), count, 1, False)
    elif inner == 1:
        yield IterationSpace(1, count, numel // count, 1, True)
        yield IterationSpace(1, numel // count, count, 1, False)
    else:
        yield IterationSpace(numel // (inner * count), count, inner, 1, False)
        if inner * count == numel:
            yield IterationSpace(1, inner, count, 1, True)
