"""Gathers: rows of a table that an index selects, and that programs can read in place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...runtime.dtypes import FLOATS
from .digits import joined, with_strides
from .graph import Call, Operation, Value, View
from .index_maps import IndexMap
from .iteration_space import IterationSpace
from .layout import Layout
from .placement import MOST_OF_LINE

aten = torch.ops.aten
MOST_TABLES = 4  # of one kernel (csrc/hip/programs/stitch_args.h)
OPERATORS = {aten.embedding.default, aten.index_select.default}
# PyTorch's kernel for rows of whole 16 bytes starts a block for each: 262144 rows of 32 bytes took 159 us on an H100,
# where bytes take 9.
_ROW_BYTES, _US_OF_ROW = 16, 6e-4


@dataclass(frozen=True)
class Gather:
    """A gather. table: [rows, columns]. index: the number of a table's row for each row of the result."""

    table: View
    index: View

    @property
    def columns(self) -> int:
        """Number of columns of the table."""
        return self.table.layout.sizes[1]

    @property
    def elements(self) -> int:
        """Upper bound of the number of the table's elements that are read."""
        return min(self.table.elements, self.index.layout.numel * self.columns)

    @property
    def least_us(self) -> float:
        """Microseconds that a call takes on a GPU at least, however few bytes it moves."""
        has_blocks = self.columns * self.table.value.dtype.itemsize % _ROW_BYTES == 0
        return has_blocks * self.index.layout.numel * _US_OF_ROW

    def layout(self, space: IterationSpace, view: View, index_map: IndexMap) -> Layout | None:
        """Layout in which a program gets the index.

        Args:
            space: the program's iteration space.
            view: the view of the gather's result that the program reads.
            index_map: of that view in the space.

        Returns:
            None if the rows of the space are not rows of the table.
        """
        columns = self.columns
        if not space.nhwc or space.channels != columns or view.layout.offset % columns:
            return None
        (_, count, stride), *outer = with_strides(index_map, space.numel)
        if stride != 1 or count % columns or any(step % columns for _, _, step in outer):
            return None
        inner = [(count // columns, 1)] if count > columns else []
        lines = joined([*inner, *((count, stride // columns) for _, count, stride in outer)])
        index, first = self.index.layout, view.layout.offset // columns
        if not index.is_row_major:
            if first or lines not in ((), ((1, index.numel, 1),)):
                return None
            lines = joined((n, s) for n, s in zip(index.sizes[::-1], index.strides[::-1], strict=True) if n != 1)
        if len(lines) > MOST_OF_LINE:
            return None
        if lines in ((), ((1, space.numel // columns, 1),)):
            return space.layout_of("row", index.offset + first)
        dims = [(count, stride) for _, count, stride in lines]
        dims += [(1, 0)] * (5 - len(dims))
        return Layout(tuple(n for n, _ in dims[::-1]), tuple(s for _, s in dims[::-1]), index.offset + first)


def gather_of(operation: Operation | None) -> Gather | None:
    """The gather that a call computes, if programs can compute it, too; else None."""
    if not isinstance(operation, Call) or operation.operator not in OPERATORS:
        return None
    table, *dim, index = operation.args[: 2 if operation.operator is aten.embedding.default else 3]
    if not table.layout.sizes:
        return None
    (_, *sizes), (pitch, *strides) = table.layout.sizes, table.layout.strides
    columns = math.prod(sizes)
    if any(dim) or columns < 2 or not table.layout.numel or not index.layout.numel:
        return None
    if not Layout(tuple(sizes), tuple(strides)).is_row_major:
        return None
    if table.value.dtype not in FLOATS or max(table.layout.sizes[0], pitch) >= 2**31:
        return None
    return Gather(View(table.value, Layout((table.layout.sizes[0], columns), (pitch, 1), table.layout.offset)), index)


_ARANGE = torch.ops.aten.arange


def counts_up(value: Value) -> bool:
    """True if the elements are 0, 1, 2 and so on. As indices of channels they need no memory."""
    maker = value.maker
    if not isinstance(maker, Call):
        return False
    if maker.operator is _ARANGE.default:
        return True
    return maker.operator in (_ARANGE.start, _ARANGE.start_step) and (maker.args[0], *maker.args[2:]) in ((0,), (0, 1))
