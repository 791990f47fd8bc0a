"""In what order regions and calls run."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterable

from ..ir.fake_tensors import Unsupported
from ..ir.gather import counts_up
from ..ir.graph import Operation, Value, View
from .greedy import Grouping
from .group import Region, is_channel_index


class Cyclic(Unsupported):
    """No order of the groups has each after those it needs."""


def schedule(grouping: Grouping) -> list[int]:
    """The groups, each after those that it needs, and after those that read what it changes; else in the graph's
    order."""
    groups = {n: region.members for n, region in grouping.regions.items()}
    groups |= {n: [operation] for n, operation in grouping.alone.items()}
    first = {n: min(grouping.place_of[each] for each in members) for n, members in groups.items()}
    before: dict[int, set[int]] = {n: set() for n in groups}
    readers: dict[Value, set[int]] = {}
    for n in groups:
        for view in reads_of(grouping, n):
            made_by = grouping.group_that_makes(view.value)
            if made_by is not None and made_by != n:
                before[n].add(made_by)
            readers.setdefault(view.value, set()).add(n)
    for n, operation in grouping.alone.items():
        for value in operation.writes:
            for reader in readers.get(value, set()) - {n}:
                earlier, later = (reader, n) if first[reader] < first[n] else (n, reader)
                before[later].add(earlier)
    for one, other in itertools.pairwise(grouping.random):
        before[other].add(one)
    for n, region in grouping.regions.items():
        for view in region.into.values():
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
    needed = {*readers, *(view.value for view in grouping.graph.output_views())}
    return [n for n in order if n not in grouping.alone or not _is_unused(grouping.alone[n], needed)]


def _is_unused(operation: Operation, needed: Container[int]) -> bool:
    """Whether it counts for programs, which know their channels' numbers."""
    return any(map(counts_up, operation.results)) and operation.results[0] not in needed


def reads_of(grouping: Grouping, group: int) -> list[View]:
    """What a region or call needs in memory, but what it makes itself."""
    return grouping.alone[group].operands if group in grouping.alone else reads_of_region(grouping.regions[group])


def reads_of_region(region: Region) -> list[View]:
    made = {each for operation in region.computed for each in operation.results}
    anchors = region.anchor.operands if region.anchor else []
    leaves = [view for key, view in region.leaves.items() if not is_channel_index(region, view, key[2])]
    in_memory = [view for view in leaves if view.value not in made | region.look_ups.keys()]
    looked_up = [view for each in region.look_ups.values() for view in (each.table, each.index)]
    return [*anchors, *in_memory, *looked_up]


def needed_in_memory(grouping: Grouping, groups: Iterable[int]) -> set[Value]:
    """The values that these groups or the graph's caller read there, and copies that are parts of these."""
    found = {view.value for group in groups for view in reads_of(grouping, group)}
    found |= {view.value for view in grouping.graph.output_views()}
    parts = [each for region in grouping.regions.values() for each in region.parts.items()]
    return found | {part for part, view in parts if view.value in found}
