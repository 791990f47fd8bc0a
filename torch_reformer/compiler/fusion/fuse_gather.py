"""Rows of tables that an index names, as embeddings are: groups read them where they are, by the numbers in the index
(programs' tables), so nobody writes what is looked up. Where a call or the caller needs it in memory, it stays there,
and groups read it as any tensor."""

from __future__ import annotations

import torch

from ..ir.gather import MOST_TABLES, Gather, gather_of
from ..ir.iteration_space import IterationSpace, fits
from ..ir.kernel_limits import MOST_STRIDED
from .greedy import Fusion
from .group import FusionGroup, has_too_many_strided

aten = torch.ops.aten


def fuse_gathers(fusion: Fusion) -> None:
    """Has groups look up what nobody else needs."""
    operations = fusion.graph.operations
    in_memory = {view.value for each in fusion.extern_calls.values() for view in each.operands}
    in_memory |= {view.value for view in fusion.graph.output_views()}
    in_memory |= {view.value for each in fusion.groups.values() if each.anchor for view in each.anchor.operands}
    written = {value for each in operations for value in each.writes}
    for number, operation in list(fusion.extern_calls.items()):
        found = gather_of(operation)
        if found is None or not written.isdisjoint((found.table.value, found.index.value)):
            continue
        value = operation.results[0]
        readers = [each for each in fusion.groups.values() if any(key[0] == value for key in each.inputs)]
        spaces = [_space(each, value, found) for each in readers]
        if not readers or value in in_memory or None in spaces:
            continue
        for group, space in zip(readers, spaces, strict=True):
            group.space = space
            group.gathers[value] = found
        del fusion.extern_calls[number]


def _space(group: FusionGroup, value: int, found: Gather) -> IterationSpace | None:
    """That in which the group can look it up, besides what it looks up already; None if there is none."""
    gathers = group.gathers | {value: found}
    spaces = [group.space]
    if not group.anchor and group.numel % found.columns == 0:
        spaces.append(IterationSpace(1, found.columns, group.numel // found.columns, 1, True))
    for space in spaces:
        if group.anchor or (space != group.space and (group.copies or not group.supports(space))):
            continue
        if not fits(space, group.operands, group.reductions):
            continue
        if any(space.kind(each) == "transposed" for each in group.copies.values()):  # AMD's kernels would spill
            continue
        inputs = [(key, gathers[key[0]].layout(space, view, key[2])) for key, view in group.inputs.items()
                  if key[0] in gathers]  # fmt: skip
        if None in (layout for _, layout in inputs) or len(inputs) > MOST_TABLES:
            continue
        placed = sum(len(layout.sizes) > 4 for _, layout in inputs) + len(group.copies)
        others = [key for key in group.inputs if key[0] not in gathers]
        if placed <= MOST_STRIDED and not has_too_many_strided(space, others, placed):
            return space
    return None
