"""In what order groups and calls run."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterable

from ..ir.fake_tensors import Unsupported
from ..ir.gather import counts_up
from ..ir.graph import Operation, Value, View
from .greedy import Fusion
from .group import FusionGroup, is_channel_index


class Cyclic(Unsupported):
    """No order of the groups has each after those it needs."""


def schedule(fusion: Fusion) -> list[int]:
    """The groups, each after those that it needs, and after those that read what it changes; else in the graph's
    order."""
    groups = {n: group.members for n, group in fusion.groups.items()}
    groups |= {n: [operation] for n, operation in fusion.extern_calls.items()}
    first = {n: min(fusion.place_of[each] for each in members) for n, members in groups.items()}
    before: dict[int, set[int]] = {n: set() for n in groups}
    readers: dict[Value, set[int]] = {}
    for n in groups:
        for view in reads_of(fusion, n):
            made_by = fusion.group_that_makes(view.value)
            if made_by is not None and made_by != n:
                before[n].add(made_by)
            readers.setdefault(view.value, set()).add(n)
    for n, operation in fusion.extern_calls.items():
        for value in operation.writes:
            for reader in readers.get(value, set()) - {n}:
                earlier, later = (reader, n) if first[reader] < first[n] else (n, reader)
                before[later].add(earlier)
    for one, other in itertools.pairwise(fusion.random):
        before[other].add(one)
    for n, group in fusion.groups.items():
        for view in group.into.values():
            before[n] |= readers.get(view.value, set()) - {n}
    after: dict[int, list[int]] = {n: [] for n in groups}
    for n, needed in before.items():
        for each in needed:
            after[each].append(n)
    left = {n: len(needed) for n, needed in before.items()}
    ready = [(first[n], n) for n, count in left.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(n)
        for each in after[n]:
            left[each] -= 1
            if not left[each]:
                heapq.heappush(ready, (first[each], each))
    if len(order) < len(groups):
        raise Cyclic
    needed = {*readers, *(view.value for view in fusion.graph.output_views())}
    return [n for n in order if n not in fusion.extern_calls or not _is_unused(fusion.extern_calls[n], needed)]


def _is_unused(operation: Operation, needed: Container[int]) -> bool:
    """Whether it counts for programs, which know their channels' numbers."""
    return any(map(counts_up, operation.results)) and operation.results[0] not in needed


def reads_of(fusion: Fusion, number: int) -> list[View]:
    """What a group or call needs in memory, but what it makes itself."""
    return (
        fusion.extern_calls[number].operands
        if number in fusion.extern_calls
        else reads_of_region(fusion.groups[number])
    )


def reads_of_region(group: FusionGroup) -> list[View]:
    made = {each for operation in group.computed for each in operation.results}
    anchors = group.anchor.operands if group.anchor else []
    inputs = [view for key, view in group.inputs.items() if not is_channel_index(group, view, key[2])]
    in_memory = [view for view in inputs if view.value not in made | group.gathers.keys()]
    gathered = [view for each in group.gathers.values() for view in (each.table, each.index)]
    return [*anchors, *in_memory, *gathered]


def needed_in_memory(fusion: Fusion, groups: Iterable[int]) -> set[Value]:
    """The values that these groups or the graph's caller read there, and copies that are parts of these."""
    found = {view.value for number in groups for view in reads_of(fusion, number)}
    found |= {view.value for view in fusion.graph.output_views()}
    parts = [each for group in fusion.groups.values() for each in group.parts.items()]
    return found | {part for part, view in parts if view.value in found}
