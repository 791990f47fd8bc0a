"""Tables of accesses (ir/access.py): constants of a plan, which kernels read."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import torch

from ..ir.access import Access, Term
from ..ir.axis_map import Row
from ..ir.graph import Value
from ..ir.iteration_space import IterationSpace
from ..ir.layout import Layout
from ..ir.placement import Runs, layout_of_runs
from ..ir.targets import Targets

_MOST_ALIGNED = 16
_GROUP = 4  # columns of which kernels choose others in registers (csrc/program/program.h)


class MapTable(NamedTuple):
    """Numbers of a map for each position: places in elements (-1: none), or pairs of a place and a weight's bits; or
    targets of rows (ir/targets.py)."""

    rows: tuple[Row, ...]
    stride: int
    taps: int
    has_weights: bool
    device: torch.device
    has_targets: bool = False

    @property
    def layout(self) -> Layout:
        return Layout.row_major((len(self.rows), self.width))

    @property
    def width(self) -> int:
        """Numbers of a position."""
        return self.taps * (2 if self.has_weights else 1)

    @property
    def kind(self) -> str:
        """Kind of the program's input (program/mapped.py)."""
        return "targets" if self.has_targets else "weighted" if self.has_weights else "places"

    def tensor(self) -> torch.Tensor:
        """The table, on the CPU."""
        numbers: list[int] = []
        for row in self.rows:
            for place, weight in (*row, *[(None, 0.0)] * (self.taps - len(row))):
                number = -1 if place is None else place * self.stride
                # Where zeros are stored: csrc/program/targets.h.
                numbers.append(-2 - number if self.has_targets and place is not None and not weight else number)
                if self.has_weights:
                    numbers += struct.unpack("<i", struct.pack("<f", weight))
        return torch.tensor(numbers, dtype=torch.int32).view(self.layout.sizes)

    @property
    def run(self) -> int:
        """Greatest power of two, up to 16, of columns that are read at once: they are adjacent and aligned in the
        source, or all from nowhere."""
        if self.stride != 1 or self.taps > 1 or self.has_weights:
            return 1
        places = [row[0][0] if row else -1 for row in self.rows]
        runs = (
            run for run in (16, 8, 4, 2) if all(_is_run(places[i : i + run], run) for i in range(0, len(places), run))
        )
        return next(runs, 1)

    @property
    def alignment(self) -> int:
        """Greatest power of two, up to 16, that divides all places."""
        divisor = math.gcd(*(place * self.stride for row in self.rows for place, _ in row))
        return math.gcd(divisor, _MOST_ALIGNED)


def columns_within(table: MapTable, offset: int) -> tuple[tuple[int | None, ...], int] | None:
    """For a table of columns, which of four columns each of the same four comes from, and how many elements these begin
    before the first one (program/mapped.py), whose offset less that is a multiple of four, if possible. None if that is
    not the same for all of them."""
    if table.taps > 1 or table.has_weights or len(table.rows) % _GROUP:
        return None
    places = [row[0][0] * table.stride if row else None for row in table.rows]
    for shift in sorted(range(_GROUP), key=lambda shift: ((offset - shift) % _GROUP, shift)):
        moved = [None if place is None else place + shift - i // _GROUP * _GROUP for i, place in enumerate(places)]
        groups = {tuple(moved[i : i + _GROUP]) for i in range(0, len(moved), _GROUP)}
        within = next(iter(groups), ())
        is_within = all(place is None or place in range(_GROUP) for place in within)
        if len(groups) == 1 and is_within and any(place is not None for place in within):
            return within, shift
    return None


def _is_run(places: list[int], length: int) -> bool:
    """True if these are so many places one after another, or none at all."""
    first = places[0]
    if len(places) < length or (first >= 0 and first % length):
        return False
    return places == ([-1] * length if first < 0 else [*range(first, first + length)])


def table_of_targets(targets: Targets, space: IterationSpace, device: torch.device) -> tuple[MapTable, Layout]:
    """Table of the targets of rows, and the layout in which a program gets it."""
    places = targets.places
    table = MapTable(places.rows, 1, max(1, places.taps), False, device, has_targets=True)
    return table, _of_lines(table, space.split(targets.positions)[1])


def table_of(term: Term, space: IterationSpace, device: torch.device) -> tuple[MapTable, Layout]:
    """Table of a term in an iteration space, and the layout in which a program gets it."""
    columns, lines = space.split(term.digits)
    rows, of_columns = term.map.rows, any(stride for _, stride in columns)
    if of_columns:
        ((count, stride),) = columns
        rows = tuple(rows[i * stride] for i in range(count))
    table = MapTable(rows, term.stride, max(1, term.map.taps), term.map.has_weights, device)
    if of_columns:
        return table, table.layout
    return table, _of_lines(table, lines)


def _of_lines(table: MapTable, lines: Runs) -> Layout:
    """Layout with the numbers of each line, whose position has these digits."""
    width = table.width
    return layout_of_runs([(width, 1), *((count, stride * width) for count, stride in lines)])


class MapTables:
    """The tables of a plan: a value stands for each, which is an input behind the graph's own ones."""

    def __init__(self):
        self.values: dict[MapTable, Value] = {}

    def add(self, access: Access, space: IterationSpace, device: torch.device) -> None:
        """Add the tables of an access."""
        for term in space.by_columns(access).terms:
            self._add(table_of(term, space, device)[0])

    def add_targets(self, targets: Targets, space: IterationSpace, device: torch.device) -> None:
        """Add the table of targets of rows."""
        self._add(table_of_targets(targets, space, device)[0])

    def _add(self, table: MapTable) -> None:
        if table not in self.values:
            self.values[table] = Value(-1, table.layout, torch.int32, table.device)
