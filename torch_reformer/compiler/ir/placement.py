"""Placements of strided operands (csrc/program/placement.h): digits of index maps as runs of columns and lines, and
which of them kernels support."""

from __future__ import annotations

from .digits import Digits, with_strides
from .layout import Layout

Runs = list[tuple[int, int]]  # counts and strides, innermost first
# Digits of a strided operand's rows and columns that kernels support (csrc/program/placement.h), and adjacent elements
# that they read at once.
MOST_OF_LINE, _OF_COLUMN, ADJACENT = 6, 2, 8
# Least number of adjacent rows and columns of a transposed tensor, and a divisor of these numbers; and how many columns
# may be adjacent, too.
LEAST_TRANSPOSED, OF_TRANSPOSED = 8, 2
_PACKED = 2, 4


def are_read(columns: Runs) -> bool:
    """True if a program can read the columns of a row, given by their counts and strides."""
    count, stride = columns[0]
    return stride == 1 and len(columns) <= _OF_COLUMN and (len(columns) == 1 or count % ADJACENT == 0)


def are_transposed(columns: Runs, lines: Runs) -> bool:
    """True if elements of successive rows are adjacent, or pairs or fours of them, and kernels can transpose so many
    rows and columns. The columns may repeat."""
    packed = packed_columns(columns)
    if packed == 1 and len(columns) == _OF_COLUMN and columns[-1][1] == 0:
        columns = columns[:-1]
    if len(columns) != 1 + (packed > 1) or packed not in (1, *_PACKED) or not lines or lines[0][1] != packed:
        return False
    count, stride = columns[-1]
    counts = packed * count, packed * lines[0][0]
    if (packed == 1 and stride < 2) or lines[0][0] == 1:
        return False
    return all(count >= LEAST_TRANSPOSED and count % OF_TRANSPOSED == 0 for count in counts)


def packed_columns(columns: Runs) -> int:
    """How many columns of a transposed tensor are adjacent."""
    return columns[0][0] if len(columns) == _OF_COLUMN and columns[0][1] == 1 else 1


def layout_of_runs(runs: Runs) -> Layout:
    """Layout of runs, innermost first, with at least five dimensions, by which operators recognise a placement."""
    dims = [*runs, *[(1, 0)] * (5 - len(runs))]
    return Layout(tuple(count for count, _ in reversed(dims)), tuple(stride for _, stride in reversed(dims)))


def split(digits: Digits, channels: int, numel: int) -> tuple[Runs, Runs] | None:
    """Digits as runs of columns and of lines, by counts and strides, innermost first; None if a digit crosses the
    end of a row, or if the digits are not those of a result of ``numel`` elements in rows of ``channels``."""
    columns, lines, inner = [], [], 1
    digits = with_strides(digits, numel)
    if digits[-1][0] * digits[-1][1] != numel:
        return None
    for _, count, stride in digits:
        within = min(count, max(1, channels // inner))
        if inner < channels and (count % within or (within < count and inner * within != channels)):
            return None
        columns += [(within, stride)] if within > 1 else []
        lines += [(count // within, within * stride)] if within < count else []
        inner *= count
    return columns, lines
