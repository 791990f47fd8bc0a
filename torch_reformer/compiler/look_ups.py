"""Rows of tables that an index names, as embeddings are: regions read them where they are, by the numbers in the index
(programs' tables), so nobody writes what is looked up. Where a call or the caller needs it in memory, it stays there,
and regions read it as any tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .grouping import Grouping
from .ir import FLOATS, Call, Operation, View
from .layout import Layout
from .regions import MOST_PLACED, Region, are_many_placed
from .space import MOST_OF_LINE, Digits, Space, fits, joined, with_strides

aten = torch.ops.aten

MOST_TABLES = 4  # that kernels take (csrc/hip/programs/stitch_args.h)
OPERATORS = {aten.embedding.default, aten.index_select.default}


@dataclass(frozen=True)
class LookUp:
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

    def layout(self, space: Space, view: View, digits: Digits) -> Layout | None:
        """How the index is handed over to a program that reads this view of what is looked up, with these digits. None
        if its rows are not the table's."""
        columns = self.columns
        if not space.nhwc or space.channels != columns or view.layout.offset % columns:
            return None
        (_, count, stride), *outer = with_strides(digits, space.numel)
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


def look_up_of(operation: Operation | None) -> LookUp | None:
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
    return LookUp(View(table.value, Layout((table.layout.sizes[0], columns), (pitch, 1), table.layout.offset)), index)


def look_up_in_regions(grouping: Grouping) -> None:
    """Has regions look up what nobody else needs."""
    operations = grouping.graph.operations
    in_memory = {id(view.value) for each in grouping.alone.values() for view in each.operands}
    in_memory |= {id(view.value) for view in grouping.graph.output_views()}
    in_memory |= {id(view.value) for each in grouping.regions.values() if each.anchor for view in each.anchor.operands}
    written = {id(value) for each in operations for value in each.writes}
    for group, operation in list(grouping.alone.items()):
        found = look_up_of(operation)
        if found is None or not written.isdisjoint((id(found.table.value), id(found.index.value))):
            continue
        value = id(operation.results[0])
        readers = [each for each in grouping.regions.values() if any(key[0] == value for key in each.leaves)]
        spaces = [_space(each, value, found) for each in readers]
        if not readers or value in in_memory or None in spaces:
            continue
        for region, space in zip(readers, spaces, strict=True):
            region.space = space
            region.look_ups[value] = found
        del grouping.alone[group]


def _space(region: Region, value: int, found: LookUp) -> Space | None:
    """That in which the region can look it up, besides what it looks up already; None if there is none."""
    look_ups = region.look_ups | {value: found}
    spaces = [region.space]
    if not region.anchor and region.numel % found.columns == 0:
        spaces.append(Space(1, found.columns, region.numel // found.columns, 1, True))
    for space in spaces:
        if region.anchor or (space != region.space and (region.copies or not region.takes(space))):
            continue
        if not fits(space, region.operands, region.reductions):
            continue
        if any(space.kind(each) == "turned" for each in region.copies.values()):  # AMD's kernels would spill
            continue
        leaves = [(key, look_ups[key[0]].layout(space, view, key[2])) for key, view in region.leaves.items()
                  if key[0] in look_ups]  # fmt: skip
        if None in (layout for _, layout in leaves) or len(leaves) > MOST_TABLES:
            continue
        placed = sum(len(layout.sizes) > 4 for _, layout in leaves) + len(region.copies)
        others = [key for key in region.leaves if key[0] not in look_ups]
        if placed <= MOST_PLACED and not are_many_placed(space, others, placed):
            return space
    return None
