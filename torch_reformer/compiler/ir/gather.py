"""Gathers: rows of a table that are read by an index."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...runtime.dtypes import FLOATS
from .graph import Call, Operation, Value, View
from .iteration_space import MOST_OF_LINE, IndexMap, IterationSpace, joined, with_strides
from .layout import Layout

aten = torch.ops.aten
MOST_TABLES = 4  # that kernels take (csrc/hip/programs/stitch_args.h)
OPERATORS = {aten.embedding.default, aten.index_select.default}


@dataclass(frozen=True)
class Gather:
    """table: [rows, columns]. index: the number of a row for each row of the result."""

    table: View
    index: View

    @property
    def columns(self) -> int:
        return self.table.layout.sizes[1]

    @property
    def elements(self) -> int:
        """Those of the table that are read at most."""
        return min(self.table.elements, self.index.layout.numel * self.columns)

    def layout(self, space: IterationSpace, view: View, index_map: IndexMap) -> Layout | None:
        """How the index is handed over to a program that reads this view of what is looked up, with these index map. None
        if its rows are not the table's."""
        columns = self.columns
        if not space.nhwc or space.channels != columns or view.layout.offset % columns:
            return None
        (_, count, stride), *outer = with_strides(index_map, space.numel)
        if stride != 1 or count % columns or any(each % columns for _, _, each in outer):
            return None
        inner = [(count // columns, 1)] if count > columns else []
        lines = joined([*inner, *((count, stride // columns) for _, count, stride in outer)])
        own, first = self.index.layout, view.layout.offset // columns
        if not own.is_row_major:
            if first or lines not in ((), ((1, own.numel, 1),)):
                return None
            lines = joined((n, s) for n, s in zip(own.sizes[::-1], own.strides[::-1], strict=True) if n != 1)
        if len(lines) > MOST_OF_LINE:
            return None
        if lines in ((), ((1, space.numel // columns, 1),)):
            return space.layout_of("row", own.offset + first)
        dims = [(count, stride) for _, count, stride in lines]
        dims += [(1, 0)] * (5 - len(dims))
        return Layout(tuple(n for n, _ in dims[::-1]), tuple(s for _, s in dims[::-1]), own.offset + first)


def gather_of(operation: Operation | None) -> Gather | None:
    """What a call looks up that programs can, too."""
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
    """Whether it is 0, 1, 2 and so on: of channels that needs no memory."""
    maker = value.maker
    if not isinstance(maker, Call):
        return False
    if maker.operator is _ARANGE.default:
        return True
    return maker.operator in (_ARANGE.start, _ARANGE.start_step) and (maker.args[0], *maker.args[2:]) in ((0,), (0, 1))
