"""Iteration spaces of programs: the shape of the result, and in what way a kernel reads each operand.

Programs read a strided operand (index_maps.py) in place if its rows, or parts of them, are rows of the result, in any
order. Kernels of GPUs also read and write transposed tensors, in which elements of successive rows, not of one row, are
adjacent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from .access import Access, term_of_columns
from .digits import Digits, joined, reordered
from .graph import View
from .index_maps import (
    BY_PLACE,
    IndexMap,
    index_map_of,
    is_strided,
)
from .layout import Layout
from .placement import (
    ADJACENT,
    LEAST_TRANSPOSED,
    MOST_OF_LINE,
    OF_TRANSPOSED,
    Runs,
    are_read,
    are_transposed,
    layout_of_runs,
    packed_columns,
    split,
)
from .targets import Targets

# Elements of the longest row that a GPU's kernel keeps in registers while it reduces the row (stitch_launch.h), and
# rows that keep a GPU's processors busy.
LONGEST_ROW, _MANY_ROWS = 4096, 64
_VERY_SHORT = 4  # columns, of which a kernel's threads read few at once
# In NHWC memory: a grid has at most 65535 blocks along them, of 32 threads at least, with one channel or four.
_MOST_CHANNELS = 1 << 20


@dataclass(frozen=True)
class IterationSpace:
    """Shape [images, channels, height, width] of the result that a program iterates over, in NHWC or NCHW memory.

    If it has heights, rows are reduced, too, and reductions of columns may be per height; it has no planes then.

    order: the order in which a kernel iterates over the result's elements, if that is not the order of memory; how far
        apart they lie in memory, and how many, for each run of them, innermost first. There are no channels, rows or
        planes then: every operand is full, one number, or strided.
    """

    images: int
    channels: int
    height: int
    width: int
    nhwc: bool
    has_heights: bool = False
    order: tuple[tuple[int, int], ...] = ()

    @property
    def pixels(self) -> int:
        """Number of spatial positions."""
        return self.height * self.width

    @functools.cached_property
    def numel(self) -> int:
        """Number of elements."""
        return self.images * self.channels * self.pixels

    @property
    def layout(self) -> Layout:
        """Layout of a full-size operand."""
        n, c, h, w = sizes = (self.images, self.channels, self.height, self.width)
        strides = (h * w * c, 1, w * c, c) if self.nhwc else (c * h * w, h * w, w, 1)
        return Layout(sizes, strides)

    @property
    def channel_map(self) -> IndexMap:
        """Index map of an operand with one element per channel."""
        return ((1 if self.nhwc else self.pixels, self.channels),)

    @property
    def plane_map(self) -> IndexMap | None:
        """Index map of an operand per image and channel; None if planes are the same as channels or elements."""
        c, p, n = self.channels, self.pixels, self.images
        if self.has_heights or min(c, p, n) == 1:
            return None
        return ((1, c), (c * p, n)) if self.nhwc else ((p, c * n),)

    @property
    def height_map(self) -> IndexMap | None:
        """Index map of a reduction's result per height and channel; None if the space has no heights."""
        if not self.has_heights:
            return None
        c, h, w = self.channels, self.height, self.width
        return ((1, c * h),) if w == 1 else ((1, c), (c * w, h))

    def kind(self, index_map: IndexMap) -> str | None:
        """Kind of an operand: full, transposed, channel, row, plane, scalar or random; None if unsupported."""
        if (kind := self.dense_kind(index_map)) is not None:
            return kind
        placement = self.placement(index_map)
        if isinstance(index_map, Access | Targets):
            return None if placement is None else "full"
        if placement is None or placement.numel != self.numel:
            return None if placement is None else "row"
        return "transposed" if are_transposed(*self.split(self._iterated(index_map))) else "full"

    def dense_kind(self, index_map: IndexMap) -> str | None:
        """Kind of an operand that needs no placement: any but transposed; None for others."""
        c, p, n = self.channels, self.pixels, self.images
        if isinstance(index_map, Access | Targets):
            return None
        if self.order:
            is_full = self._iterated(index_map) == ((1, self.numel, 1),)
            return "full" if is_full else None if index_map else "scalar"
        if index_map == BY_PLACE:  # programs number the elements in NHWC order
            return "random" if self.nhwc or c == 1 or p == 1 else None
        if self.numel == 1 or index_map == ((1, self.numel),):
            return "full"
        if not index_map:
            return "scalar"
        if index_map == self.channel_map:
            return "channel"
        if index_map == self.plane_map:
            return "plane"
        rows = ((c, n * p),) if self.nhwc else tuple(digit for digit in ((1, p), (p * c, n)) if digit[1] != 1)
        return "row" if index_map == rows else None

    def is_strided(self, index_map: IndexMap) -> bool:
        """True if a program reads the operand by a placement."""
        return self.dense_kind(index_map) is None and self.placement(index_map) is not None

    @functools.lru_cache(1 << 14)  # noqa: B019  spaces are small
    def placement(self, index_map: IndexMap) -> Layout | None:
        """Layout in which a program gets a strided operand; None if no program can read it.

        Its dimensions run through the elements in the order of the result's memory, or through the rows if the operand
        is constant along each row. There are at least five dimensions, by which operators recognise a placement.
        """
        if not self.nhwc or self.channels == 1 or index_map == BY_PLACE:
            return None
        if (index_map := self._iterated(index_map)) is None:
            return None
        if isinstance(index_map, Access):
            return self._placement_of_access(index_map)
        if isinstance(index_map, Targets):
            return self._placement_of_targets(index_map)
        if (runs := self.split(index_map)) is None:
            return None
        columns, lines = runs
        is_row = all(stride == 0 for _, stride in columns)
        is_read = is_row or are_read(columns) or are_transposed(columns, lines)
        if len(lines) > MOST_OF_LINE or not is_read:
            return None
        return layout_of_runs([*([] if is_row else columns), *lines])

    def _iterated(self, index_map: IndexMap) -> IndexMap | None:
        """The index map over the elements in the order of iteration; None if that takes parts of a digit."""
        if not self.order or index_map == BY_PLACE:
            return index_map
        if isinstance(index_map, Targets):
            return None
        if not isinstance(index_map, Access):
            return reordered(index_map, self.order, self.numel)
        digits = reordered(index_map.digits, self.order, self.numel)
        terms = [term._replace(digits=reordered(term.digits, self.order, self.numel)) for term in index_map.terms]
        if digits is None or any(term.digits is None for term in terms):
            return None
        return Access(index_map.fill, digits, tuple(terms))

    def split(self, digits: Digits) -> tuple[Runs, Runs] | None:
        """Digits of an operand as runs of columns and of lines (placement.py)."""
        return split(digits, self.channels, self.numel)

    @functools.lru_cache(1 << 12)  # noqa: B019  spaces are small
    def by_columns(self, access: Access) -> Access:
        """The access over the order of iteration, with one term for all that varies along a row, if that is more than
        adjacent elements or one term, and no such term varies along lines."""
        if self.order:
            return replace(self, order=()).by_columns(self._iterated(access))
        if (runs := self.split(access.digits)) is None or self.channels > LONGEST_ROW:
            return access
        columns, lines = runs
        of_columns, others = [], []
        for term in access.terms:
            if (parts := self.split(term.digits)) is None:
                return access
            if all(stride == 0 for _, stride in parts[0]):
                others.append(term)
            elif any(stride for _, stride in parts[1]):
                return access
            else:
                of_columns.append((parts[0], term))
        is_row = all(stride == 0 for _, stride in columns)
        if len(of_columns) + (not is_row) < 2 and (not of_columns or len(of_columns[0][0]) == 1):
            return access
        term = term_of_columns(self.channels, columns, of_columns)
        return Access(access.fill, joined([(self.channels, 0), *lines]), (*others, term))

    def adjacent(self, index_map: IndexMap) -> tuple[int, int] | None:
        """How many columns of a strided operand a thread may read at once, 0 if it does not read by columns, and how
        many of its elements are adjacent. None for other operands, and those that are constant along rows."""
        if self.dense_kind(index_map) is not None:
            return None
        index_map = self._iterated(index_map)
        if isinstance(index_map, Access):
            return self._adjacent_of_access(index_map)
        columns, lines = self.split(index_map)
        if all(stride == 0 for _, stride in columns):
            return None
        if are_transposed(columns, lines):
            return 0, packed_columns(columns) * lines[0][0]
        return columns[0][0], columns[0][0]

    def _adjacent_of_access(self, access: Access) -> tuple[int, int]:
        plain = replace(self, order=())
        columns, lines = self.split(plain.by_columns(access).digits)
        if any(stride for _, stride in columns):
            return columns[0][0], columns[0][0]
        if plain.reads_lines(access):
            return 0, lines[0][0]
        of_columns = (term for term in plain.by_columns(access).terms if plain.split(term.digits)[0][0][1])
        return 0, min(ADJACENT, *(term.elements_of_sector for term in of_columns))

    def reads_lines(self, access: Access) -> bool:
        """True if a kernel that reduces no rows reads elements of several lines of this operand at once
        (csrc/program/accesses.cpp): they are adjacent, and columns are chosen by a map."""
        access = self.by_columns(access)
        runs = [self.split(term.digits) for term in access.terms]
        of_columns = [any(stride for _, stride in columns) for columns, _ in runs]
        lines = self.split(access.digits)[1]
        count, stride = lines[0] if lines else (1, 0)
        if not (access.only_chooses and any(of_columns) and stride == 1 and count >= LEAST_TRANSPOSED):
            return False
        of_lines = [lines[0] for (_, lines), is_of in zip(runs, of_columns, strict=True) if not is_of]
        return count % OF_TRANSPOSED == 0 and all(stride == 0 for _, stride in of_lines)

    def _placement_of_access(self, access: Access) -> Layout | None:
        """Layout of an access without its terms: of the elements, or of the lines if a term is of columns. Such a term
        is of all columns and of no lines, and kernels read its elements one by one."""
        access = replace(self, order=()).by_columns(access)
        of_columns = 0
        for term in access.terms:
            if (runs := self.split(term.digits)) is None:
                return None
            columns, lines = runs
            if all(stride == 0 for _, stride in columns):
                if len(lines) > MOST_OF_LINE:
                    return None
                continue
            if len(columns) > 1 or any(stride for _, stride in lines):
                return None
            of_columns += 1
        if (runs := self.split(access.digits)) is None or of_columns > 1:
            return None
        columns, lines = runs
        is_row = all(stride == 0 for _, stride in columns)
        if len(lines) > MOST_OF_LINE or is_row != bool(of_columns) or not (is_row or are_read(columns)):
            return None
        return layout_of_runs([*([] if is_row else columns), *lines])

    def _placement_of_targets(self, targets: Targets) -> Layout | None:
        """Layout without the places of the table, which are those of whole lines."""
        runs, positions = self.split(targets.digits), self.split(targets.positions)
        if runs is None or positions is None or any(stride for _, stride in positions[0]):
            return None
        columns, lines = runs
        if max(len(lines), len(positions[1])) > MOST_OF_LINE or not are_read(columns):
            return None
        return layout_of_runs([*columns, *lines])

    def sizes_of(self, kind: str) -> tuple[int, ...]:
        """Sizes of an operand of this kind, without a placement."""
        return {
            "full": self.layout.sizes,
            "channel": (self.channels,),
            "row": (self.images, self.height, self.width),
            "plane": (self.images, self.channels),
            "height": (self.height, self.channels),
            "scalar": (),
            "random": (1,),
        }[kind]

    def layout_of(self, kind: str, offset: int = 0) -> Layout:
        """Dense layout of an operand of this kind, whose first element lies at `offset`."""
        if kind == "full":
            return Layout(self.layout.sizes, self.layout.strides, offset)
        sizes = self.sizes_of(kind)
        return Layout(sizes, tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes))), offset)


def reduces_rows(numel: int, index_map: IndexMap | None) -> bool:
    """True if a reduction with this index map is better done row by row, so that its result is known while the row's
    elements are in registers: the rows are many enough for a GPU's processors, or short."""
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
    """True if a program over the space can read these operands and compute these reductions.

    Args:
        operands: index maps of operands.
        reductions: index maps of the reductions' results: per channel, one number, or per row, plane or height.
        whole_rows: whether a kernel has whole rows in registers, as reductions per row and plane and strided operands
            need; a convolution's epilogue has not.
        transposes: whether operands may be transposed; never with reductions per row.
    """
    if space.nhwc and space.channels > _MOST_CHANNELS and (space.channels % 4 or space.channels > 4 * _MOST_CHANNELS):
        return False
    operands = list(operands)
    kinds = {space.kind(operand) for operand in operands}
    has_targets = any(isinstance(operand, Targets) for operand in operands)
    has_maps = has_targets or any(isinstance(operand, Access) for operand in operands)
    if (has_targets and "transposed" in kinds) or (has_maps and reductions and space.channels > LONGEST_ROW):
        return False
    if None in kinds or ("transposed" in kinds and not transposes):
        return False
    if not whole_rows and any(map(space.is_strided, operands)):
        return False
    per_row = [index_map for index_map in reductions if whole_rows and reduces_rows(space.numel, index_map)]
    others = [index_map for index_map in reductions if index_map not in per_row]
    if any(space.dense_kind(index_map) != "row" for index_map in per_row) or (per_row and "transposed" in kinds):
        return False
    if per_row:
        others = [index_map for index_map in others if index_map != space.height_map]
    if any(index_map and space.dense_kind(index_map) not in ("channel", "plane") for index_map in others):
        return False
    if (per_row or not whole_rows) and space.plane_map in (*operands, *others):
        return False
    return not (per_row and len(reductions) > len(per_row)) or space.channels <= LONGEST_ROW


def find_space(
    numel: int, operands: set[IndexMap], reductions: set[IndexMap], transposes: bool = False
) -> IterationSpace | None:
    """An iteration space that fits operands and reductions; None if there is none.

    The rows of the candidates are those of a reduction or of an operand, of strided operands last.
    """

    def priority(index_map: IndexMap):
        return index_map not in reductions, is_strided(index_map), -len(index_map), index_map

    for index_map in sorted(reductions | operands, key=priority):
        for space in _spaces(numel, index_map):
            if fits(space, operands, reductions, transposes=transposes):
                return space
    for space in _spaces_with_heights(numel, reductions):
        if fits(space, operands, reductions):
            return space
    plain = IterationSpace(1, 1, numel, 1, False)
    return plain if fits(plain, operands, reductions) else None


def has_space(inputs: Iterable[View], layout: Layout) -> bool:
    """True if a program can compute a result of this layout from the inputs in place."""
    return find_space(layout.numel, {index_map_of(layout, view.layout) for view in inputs}, set()) is not None


def _spaces(numel: int, index_map: IndexMap):
    """Candidate spaces of `numel` elements in which the index map is per channel, row or plane."""
    if not index_map or index_map in (BY_PLACE, ((1, numel),)):
        return
    if isinstance(index_map, Access):
        yield from _spaces_of_access(numel, index_map)
        return
    inner, count = (index_map.digits if isinstance(index_map, Targets) else index_map)[0][:2]
    if is_strided(index_map):  # rows are its first two digits, or the first, which is better than one row of all
        rows = [inner * count for inner, count, _ in index_map[1::-1]]
        for channels in sorted(rows, key=lambda channels: channels == numel):
            yield IterationSpace(1, channels, numel // channels, 1, True)
    elif len(index_map) == 2 and inner == 1:
        images = index_map[1][1]
        yield IterationSpace(images, count, numel // (count * images), 1, True)
        yield IterationSpace(images, numel // (count * images), count, 1, False)
    elif inner == 1:
        yield IterationSpace(1, count, numel // count, 1, True)
        yield IterationSpace(1, numel // count, count, 1, False)
    else:
        yield IterationSpace(numel // (inner * count), count, inner, 1, False)
        yield IterationSpace(1, inner, numel // inner, 1, True)


def _spaces_with_heights(numel: int, reductions: set[IndexMap]):
    """Candidate spaces whose rows are those of one reduction, and whose heights those of another one."""
    rows = next((index_map for index_map in reductions if reduces_rows(numel, index_map)), None)
    if rows is None:
        return
    channels = rows[0][0]
    for index_map in sorted(reductions - {rows, ()}):
        columns, lines = split(index_map, channels, numel) or ([], [])
        if columns != [(channels, 1)]:
            continue
        width = lines[0][0] if lines[0][1] == 0 else 1
        height = next((count for count, stride in lines if stride), 1)
        images = numel // (channels * width * height)
        if height > 1 and images * width > 1:
            yield IterationSpace(images, channels, height, width, True, has_heights=True)


def _spaces_of_access(numel: int, access: Access):
    """Candidate spaces whose columns are the innermost digits without a map, or else the innermost axis with one; or
    more digits than a very short axis, or than one that has further digits outside."""
    of_columns = [term.digits[0][1] for term in access.terms if term.digits and term.digits[0][0] == 1]
    first = access.digits[0] if access.digits else (1, 1, 0)
    candidates = of_columns or [first[1] if first[2] == 1 else 1]
    is_split = any(term.digits[0][0] == 1 and len(term.digits) > 1 for term in access.terms if term.digits)
    if min(candidates) < _VERY_SHORT or is_split:
        ends = sorted(inner * count for inner, count, _ in access.digits)
        candidates = [*(end for end in ends if _VERY_SHORT <= end <= LONGEST_ROW), *candidates]
    for channels in candidates:
        if 1 < channels < 2**31 and numel % channels == 0:
            yield IterationSpace(1, channels, numel // channels, 1, True)
