"""Apply a solution: replace a component's greedy groups in a fusion by the chosen ones."""

from __future__ import annotations

import itertools

from ...ir.graph import Operation, Value
from ..greedy import Fusion
from ..group import FusionGroup, is_collective
from ..schedule import reads_of, schedule
from .candidates import Candidate
from .components import Component


def replace_groups(fusion: Fusion, component: Component, chosen: list[Candidate], stored: set[Value]) -> None:
    """Replace the component's greedy groups by the chosen ones.

    Args:
        stored: the component's values that the chosen groups store.
    """
    for candidate in component.greedy:
        del fusion.groups[candidate.group.number]
    chosen = sorted(chosen, key=lambda candidate: (candidate.before.bit_length(), candidate.operations))
    left, outputs = set(stored), []  # outputs: for each chosen candidate, the operations whose results it stores
    for candidate in chosen:
        outputs.append([value.maker for value in candidate.provides if value in left])
        left -= set(candidate.provides)
    others = {operation for operations in outputs for operation in operations}  # a group may recompute other groups'
    for candidate, own in zip(chosen, outputs, strict=True):
        if own or candidate.group.anchor:
            others |= set(_add(fusion, candidate.group, own, others))


def _add(fusion: Fusion, group: FusionGroup, outputs: list[Operation], others: set[Operation]) -> list[Operation]:
    """Add a group that stores the results of ``outputs``, and return the operations that are now its own."""
    group = group.copy()
    group.keep_only(outputs, others - set(outputs))
    group.live_results = {operation.results[0] for operation in outputs}
    group.number = fusion.new_group()
    fusion.groups[group.number] = group
    for operation in group.members:
        fusion.group_of[operation] = group.number
    return group.members


def update_needs(fusion: Fusion) -> None:
    """Compute anew which groups come before each (Fusion.needs)."""
    begun = 0
    for number in schedule(fusion):
        bits = begun
        for view in reads_of(fusion, number):
            maker = fusion.group_that_makes(view.value)
            if maker is not None and maker != number:
                bits |= fusion.needs[maker] | 1 << maker
        fusion.needs[number] = bits
        if is_collective(fusion.extern_calls.get(number)):
            begun = bits | 1 << number
    for one, other in itertools.pairwise(fusion.ordered):
        fusion.needs[other] |= fusion.needs[one] | 1 << one
