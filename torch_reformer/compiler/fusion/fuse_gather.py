"""Rows of tables that an index names, as embeddings are: regions read them where they are, by the numbers in the index
(programs' tables), so nobody writes what is looked up. Where a call or the caller needs it in memory, it stays there,
and regions read it as any tensor."""

from __future__ import annotations

import torch

from ..ir.gather import MOST_TABLES, LookUp, look_up_of
from ..ir.iteration_space import Space, fits
from ..ir.kernel_limits import MOST_PLACED
from .greedy import Grouping
from .group import Region, are_many_placed

aten = torch.ops.aten


def look_up_in_regions(grouping: Grouping) -> None:
    """Has regions look up what nobody else needs."""
    operations = grouping.graph.operations
    in_memory = {view.value for each in grouping.alone.values() for view in each.operands}
    in_memory |= {view.value for view in grouping.graph.output_views()}
    in_memory |= {view.value for each in grouping.regions.values() if each.anchor for view in each.anchor.operands}
    written = {value for each in operations for value in each.writes}
    for group, operation in list(grouping.alone.items()):
        found = look_up_of(operation)
        if found is None or not written.isdisjoint((found.table.value, found.index.value)):
            continue
        value = operation.results[0]
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
