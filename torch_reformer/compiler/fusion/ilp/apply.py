"""A component's regions as they were chosen, in the place of the greedy ones of a grouping."""

from __future__ import annotations

import itertools

from ...ir.graph import Operation, Value
from ..greedy import Grouping
from ..group import Region, copy_of
from ..schedule import Cyclic, reads_of, schedule
from .candidates import Candidate
from .components import Component


def replace_regions(grouping: Grouping, component: Component, chosen: list[Candidate], stored: set[Value]) -> None:
    """chosen: what stands for the component's greedy regions. stored: values."""
    for each in component.greedy:
        del grouping.regions[each.region.number]
    chosen = sorted(chosen, key=lambda each: (each.before.bit_length(), each.operations))
    left, outputs = set(stored), []  # of each of the chosen, the operations whose results it stores
    for each in chosen:
        outputs.append([value.maker for value in each.provides if value in left])
        left -= {value for value in each.provides}
    others = {operation for each in outputs for operation in each}  # which a region may compute, but not store
    for each, own in zip(chosen, outputs, strict=True):
        if own or each.region.anchor:
            others |= {operation for operation in _add(grouping, each.region, own, others)}


def _add(grouping: Grouping, region: Region, outputs: list[Operation], others: set[Operation]) -> list[Operation]:
    """Adds a region that stores the results of these; gives the operations that are its own from now on."""
    region = copy_of(region)
    needed, leaves = set(), {}
    for operation in outputs:
        if operation is not region.anchor:
            operations, read = region.traced(operation)
            needed |= set((operations))
            leaves |= read
    stored = set((outputs))
    computed = [each for each in region.operations if each in needed]
    region.operations = [each for each in computed if each in stored or each not in others]
    members = set((region.operations))
    region.recomputed = [each for each in computed if each not in members]
    region.leaves = leaves
    region.copies = {value: digits for value, digits in region.copies.items() if value in region.makes}
    region.operands = {*(digits for _, _, digits in leaves), *region.copies.values()}
    region.open_results = {each.results[0] for each in outputs}
    region.number = grouping.new_group()
    grouping.regions[region.number] = region
    for each in region.members:
        grouping.group_of[each] = region.number
    return region.members


def fault_of(grouping: Grouping) -> str | None:
    """Why a grouping is no plan; None if it is one."""
    made = {each.results[0] for region in grouping.regions.values() for each in region.members}
    made |= {result for operation in grouping.alone.values() for result in operation.results}
    read = [view for number in (*grouping.regions, *grouping.alone) for view in reads_of(grouping, number)]
    for view in (*read, *grouping.graph.output_views()):
        if view.value.maker is not None and view.value not in made:
            return f"no region would make {view.value}"
    try:
        schedule(grouping)
    except Cyclic:
        return "regions would need each other"
    return None


def note_needs(grouping: Grouping) -> None:
    """Says anew which groups come before each."""
    for number in schedule(grouping):
        bits = 0
        for view in reads_of(grouping, number):
            maker = grouping.group_that_makes(view.value)
            if maker is not None and maker != number:
                bits |= grouping.needs[maker] | 1 << maker
        grouping.needs[number] = bits
    for one, other in itertools.pairwise(grouping.random):
        grouping.needs[other] |= grouping.needs[one] | 1 << one
