"""A component's groups as they were chosen, in the place of the greedy ones of a fusion."""

from __future__ import annotations

import itertools

from ...ir.graph import Operation, Value
from ..greedy import Fusion
from ..group import FusionGroup
from ..schedule import Cyclic, reads_of, schedule
from .candidates import Candidate
from .components import Component


def replace_groups(fusion: Fusion, component: Component, chosen: list[Candidate], stored: set[Value]) -> None:
    """chosen: what stands for the component's greedy groups. stored: values."""
    for each in component.greedy:
        del fusion.groups[each.group.number]
    chosen = sorted(chosen, key=lambda each: (each.before.bit_length(), each.operations))
    left, outputs = set(stored), []  # of each of the chosen, the operations whose results it stores
    for each in chosen:
        outputs.append([value.maker for value in each.provides if value in left])
        left -= {value for value in each.provides}
    others = {operation for each in outputs for operation in each}  # which a group may compute, but not store
    for each, own in zip(chosen, outputs, strict=True):
        if own or each.group.anchor:
            others |= {operation for operation in _add(fusion, each.group, own, others)}


def _add(fusion: Fusion, group: FusionGroup, outputs: list[Operation], others: set[Operation]) -> list[Operation]:
    """Adds a group that stores the results of these; gives the operations that are its own from now on."""
    group = group.copy()
    group.keep_only(outputs, others - set(outputs))
    group.live_results = {each.results[0] for each in outputs}
    group.number = fusion.new_group()
    fusion.groups[group.number] = group
    for each in group.members:
        fusion.group_of[each] = group.number
    return group.members


def fault_of(fusion: Fusion) -> str | None:
    """Why a fusion is no plan; None if it is one."""
    made = {each.results[0] for group in fusion.groups.values() for each in group.members}
    made |= {result for operation in fusion.extern_calls.values() for result in operation.results}
    read = [view for number in (*fusion.groups, *fusion.extern_calls) for view in reads_of(fusion, number)]
    for view in (*read, *fusion.graph.output_views()):
        if view.value.maker is not None and view.value not in made:
            return f"no group would make {view.value}"
    try:
        schedule(fusion)
    except Cyclic:
        return "groups would need each other"
    return None


def note_needs(fusion: Fusion) -> None:
    """Says anew which groups come before each."""
    for number in schedule(fusion):
        bits = 0
        for view in reads_of(fusion, number):
            maker = fusion.group_that_makes(view.value)
            if maker is not None and maker != number:
                bits |= fusion.needs[maker] | 1 << maker
        fusion.needs[number] = bits
    for one, other in itertools.pairwise(fusion.random):
        fusion.needs[other] |= fusion.needs[one] | 1 << one
