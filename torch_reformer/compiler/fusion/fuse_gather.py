"""Fuse gathers, such as embeddings: groups read the rows of a table by index, and the gathered rows are never stored.

A gather whose result a call or the graph's caller needs in memory stays a call, as does one of a table that changes
before all that reads the result: a training step changes its tables last."""

from __future__ import annotations

from ..ir.access import Access
from ..ir.gather import MOST_TABLES, Gather, gather_of
from ..ir.graph import Value
from ..ir.iteration_space import IterationSpace, fits
from ..ir.kernel_limits import TRANSPOSES_GATHERS
from ..ir.targets import Targets
from .greedy import Fusion
from .group import FusionGroup, has_too_many_strided, has_too_many_transposed


def fuse_gathers(fusion: Fusion) -> None:
    """Replace gathers that only groups read by reads of the tables (FusionGroup.gathers)."""
    groups = fusion.groups.values()
    in_memory = {view.value for call in fusion.extern_calls.values() for view in call.operands}
    in_memory |= {view.value for view in fusion.graph.output_views()}
    in_memory |= {view.value for group in groups if group.anchor for view in group.anchor.operands}
    writes: dict[Value, int] = {}  # the place of the first
    for operation in fusion.graph.operations:
        for value in operation.writes:
            writes.setdefault(value, fusion.place_of[operation])
    for number, operation in list(fusion.extern_calls.items()):
        gather = gather_of(operation)
        if gather is None:
            continue
        value = operation.results[0]
        readers = [group for group in groups if any(key[0] == value for key in group.inputs)]
        spaces = [_space(group, value, gather) for group in readers]
        if not readers or value in in_memory or None in spaces:
            continue
        reading = [operation, *(member for group in readers for member in group.members)]
        last = max(fusion.place_of[member] for member in reading)
        if any(writes.get(view.value, last) < last for view in (gather.table, gather.index)):
            continue
        for group, space in zip(readers, spaces, strict=True):
            group.space = space
            group.gathers[value] = gather
        del fusion.extern_calls[number]


def _space(group: FusionGroup, value: Value, gather: Gather) -> IterationSpace | None:
    """Iteration space in which the group can gather this value and those it gathers already; None if there is none."""
    gathers = group.gathers | {value: gather}
    spaces = [group.space]
    if not group.anchor and group.numel % gather.columns == 0:
        spaces.append(IterationSpace(1, gather.columns, group.numel // gather.columns, 1, True))
    index_maps = [*(index_map for _, _, index_map in group.inputs), *group.copies.values()]
    if any(isinstance(index_map, Access | Targets) for index_map in index_maps):
        return None  # tables and maps together may be more than a kernel supports
    for space in spaces:
        if group.anchor or space.order or (space != group.space and (group.copies or not group.supports(space))):
            continue
        if not fits(space, group.operands, group.reductions, transposes=TRANSPOSES_GATHERS):
            continue
        if has_too_many_transposed(space, group.inputs, group.copies.values()):
            continue
        if not TRANSPOSES_GATHERS and any(space.kind(copied) == "transposed" for copied in group.copies.values()):
            continue
        inputs = [(key, gathers[key[0]].layout(space, view, key[2])) for key, view in group.inputs.items()
                  if key[0] in gathers]  # fmt: skip
        if None in (layout for _, layout in inputs) or len(inputs) > MOST_TABLES:
            continue
        strided = sum(len(layout.sizes) > 4 for _, layout in inputs)
        others = [key for key in group.inputs if key[0] not in gathers]
        if not has_too_many_strided(space, others, group.copies.values(), strided):
            return space
    return None
