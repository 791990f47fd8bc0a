"""Programs that read a tensor through maps of its axes, and tensors for them, for tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.mapped import map_of, mapped

Rows = list[list[tuple[int, float]]]  # taps of each position


@dataclass(frozen=True)
class Way:
    """How a [N, H, W, C] tensor becomes one of the sizes [N, len(height), len(width), C]."""

    height: Rows
    width: Rows
    nowhere: float = 0.0
    columns: bool = False  # the source is [N, C, H, W], and the columns are its width
    run: int = 1  # columns that are read at once, if the width is a multiple
    within: tuple[int | None, ...] = ()  # which of four columns each of the same four is, if the width is a multiple
    shift: int = 0  # of the source's first element behind those
    by_lines: bool = False  # the source's channels are adjacent, and lines
    mostly_chooses: bool = False  # few elements have several taps


def choosing(places) -> Rows:
    return [[(place, 1.0)] if place >= 0 else [] for place in places]


def ways(h: int, w: int) -> dict[str, Way]:
    """Ways to read an image of h rows and w columns."""
    roll = choosing([(i + 2) % h for i in range(h)]), choosing([(i - 1) % w for i in range(w)])
    pad = choosing([-1, *range(h)]), choosing([*range(w), -1, -1])
    means = [[(i, 0.5), (i + 1, 0.25)] if i + 1 < h else [(i, 0.5)] for i in range(h)]
    sums = [[(i, 1.0), (w - 1 - i, 1.0)] if i % 3 else [] for i in range(w)]
    few = [[(i, 1.0), (h - 1 - i, 1.0)] if i == 1 else [(i, 1.0)] for i in range(h)]
    few_columns = [[(i, 0.5), (w - 1 - i, 1.5)] if i == 0 else [(i, 1.0)] if i % 5 else [] for i in range(w)]
    long = [[(j, 1 / (j + 2)) for j in range(min(h, 6))] for i in range(h + 1)]
    return {
        "roll": Way(*roll),
        "pad": Way(*pad),
        "pad by minus infinity": Way(*pad, nowhere=-torch.inf),
        "pad by ones": Way(*pad, nowhere=1.0),
        "taps": Way(means, sums),
        "many taps": Way(long, roll[1]),
        "slice, columns": Way(roll[0], choosing([*[-1] * 4, *range(w), *[-1] * 8]), 1.0, columns=True, run=4),
        "roll, columns": Way(*roll, columns=True),
        "pad by ones, columns": Way(*pad, nowhere=1.0, columns=True),
        "taps, columns": Way(means, sums, columns=True),
        "pairs, columns": Way(
            roll[0], choosing([i ^ 1 if i ^ 1 < w else -1 for i in range(w)]), columns=True, within=(1, 0, 3, 2)
        ),
        "second of pairs, columns": Way(
            pad[0],
            choosing([i + 1 if i % 2 == 0 and i + 1 < w else -1 for i in range(w)]),
            1.0,
            columns=True,
            within=(1, None, 3, None),
            shift=1,
        ),
        "few sums": Way(few, few_columns, mostly_chooses=True),
        "few sums, columns": Way(few, few_columns, columns=True, mostly_chooses=True),
        "lines": Way(*roll, columns=True, by_lines=True),
        "pad by ones, lines": Way(*pad, nowhere=1.0, columns=True, by_lines=True),
    }


def table(rows: Rows, stride: int) -> tuple[str, Tensor]:
    """Kind and numbers [positions, numbers] of a table."""
    taps = max(1, *map(len, rows))
    is_weighted = any(weight != 1 for row in rows for _, weight in row)
    numbers = []
    for row in rows:
        for place, weight in [*row, *[(None, 0.0)] * (taps - len(row))]:
            numbers.append(-1 if place is None else place * stride)
            if is_weighted:
                numbers += struct.unpack("<i", struct.pack("<f", weight))
    tensor = torch.tensor(numbers, dtype=torch.int32).view(len(rows), -1)
    return ("weighted" if is_weighted else "places"), tensor


def operands(source: Tensor, way: Way, alignment: int | None = None):
    """The leaf of a program that reads source, its tensors by name, and the size [N, K, H, W] of what it reads.

    Args:
        source: [N, H, W, C], or [N, C, H, W] if a map is of columns; dense.
    """
    n = len(source)
    h, w = len(way.height), len(way.width)
    within, shift = (way.within, way.shift) if way.within and w % len(way.within) == 0 else ((), 0)
    if way.columns:
        c = source.shape[1]
        strides = source.stride()
        down, across = table(way.height, strides[2]), table(_before(way.width, shift), strides[3])
        align = way.run if source.shape[3] % way.run == 0 else 1
        if way.by_lines:
            size = (n, w, h, c)  # lines are [n, h, c]
            base = source.as_strided((1, 1, n, h, c), (0, 0, strides[0], 0, strides[1]))
            lines = _of_lines(down[1], (n, h, c), 1)
            align = next(a for a in (16, 8, 4, 2, 1) if c % a == 0)
        else:
            size = (n, w, c, h)  # lines are [n, c, h]
            base = source.as_strided((1, 1, n, c, h), (0, 0, strides[0], strides[1], 0), shift)
            lines = _of_lines(down[1], (n, c, h), 2)
            align = next(a for a in (16, 8, 4, 2, 1) if strides[2] % a == 0) if within else align
        tables = [(down[0], lines), across]
    else:
        c = source.shape[3]
        size = (n, c, h, w)
        strides = source.stride()
        base = source.as_strided((1, n, h, w, c), (0, strides[0], 0, 0, 1))
        down, across = table(way.height, strides[1]), table(way.width, strides[2])
        tables = [(down[0], _of_lines(down[1], (n, h, w), 1)), (across[0], _of_lines(across[1], (n, h, w), 2))]
        align = next(a for a in (16, 8, 4, 2, 1) if c % a == 0)
    align = align if alignment is None else alignment
    leaf = mapped("t", tuple(kind for kind, _ in tables), way.nowhere, align, within, shift, way.mostly_chooses)
    return leaf, {"t": base} | {map_of("t", i): numbers for i, (_, numbers) in enumerate(tables)}, size


def _before(rows: Rows, count: int) -> Rows:
    """The taps of a source that begins so many elements later."""
    return [[(place - count, weight) for place, weight in row] for row in rows]


def _of_lines(numbers: Tensor, lines: tuple[int, ...], dim: int) -> Tensor:
    """A table for each line, whose position is the line's in one dimension."""
    width = numbers.shape[1]
    strides = [width if d == dim else 0 for d in range(3)]
    return numbers.as_strided((1, *lines, width), (0, *strides, 1))


def expected(source: Tensor, way: Way) -> Tensor:
    """The elements that a program reads of a source, in fp64, as [N, K, H, W]; only taps that are there multiply."""
    image = source.double() if way.columns else source.double().permute(0, 3, 1, 2)
    read = torch.full((*image.shape[:2], len(way.height), len(way.width)), way.nowhere, dtype=torch.float64)
    for y, down in enumerate(way.height):
        for x, across in enumerate(way.width):
            taps = [a * b * image[:, :, i, j] for i, a in down for j, b in across]
            if taps:
                read[:, :, y, x] = sum(taps[1:], taps[0])
    if way.by_lines:
        return read.permute(0, 3, 2, 1)
    return read.permute(0, 3, 1, 2) if way.columns else read


def reading(leaf) -> dict[str, Program]:
    """Programs of the leaf: element-wise, alone and with sums of columns, and with reductions of rows."""
    acc, norm = program.acc(), leaf - program.row_max(leaf)
    return {
        "stored": Program(program.store(program.maximum(leaf, -3) * 2 + acc), program.store(leaf)),
        "element-wise": Program(
            program.store(program.maximum(leaf, -3) * 2 + acc),
            program.store(leaf),
            program.sum(program.maximum(leaf, -3)),
        ),
        "rows": Program(
            program.store(program.select(program.row_max(leaf) < -1e30, 7, norm * acc)), program.store(leaf)
        ),
    }
