"""Order in which fusion groups and extern calls run, and the values they need in memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container, Iterable

from ..ir.concats import memory_of
from ..ir.custom_ops import after
from ..ir.fake_tensors import Unsupported
from ..ir.gather import counts_up
from ..ir.graph import Call, Operation, Value, View
from .greedy import Fusion
from .group import FusionGroup


class Cyclic(Unsupported):
    """The groups depend on each other in a cycle."""


def schedule(fusion: Fusion) -> list[int]:
    """Numbers of groups and calls in an order in which they can run: topological, else the graph's.

    A group runs after those it needs, and after the readers of a tensor that it overwrites. What reads a tensor that a
    call changes in place runs before or after the call, as in the graph. Calls that draw random numbers, and
    collectives, keep their order.

    Raises:
        Cyclic: there is no such order.
    """
    groups = {n: group.members for n, group in fusion.groups.items()}
    groups |= {n: [operation] for n, operation in fusion.extern_calls.items()}
    first = {n: min(fusion.place_of[operation] for operation in members) for n, members in groups.items()}
    before: dict[int, set[int]] = {n: set() for n in groups}
    readers: dict[Value, set[int]] = {}
    for n in groups:
        for view in reads_of(fusion, n):
            maker = fusion.group_that_makes(view.value)
            if maker is not None and maker != n:
                before[n].add(maker)
            readers.setdefault(view.value, set()).add(n)
    for n, group in fusion.groups.items():
        for view in group.parts.values():  # its value is known after all groups that write parts of it
            before[fusion.group_of[view.value.maker]] |= {n} - {fusion.group_of[view.value.maker]}
            memory = memory_of(view.value)
            maker = memory and fusion.group_that_makes(memory.value)
            before[n] |= {maker} - {n, None}
    for n, operation in fusion.extern_calls.items():
        for value in operation.writes:
            for reader in readers.get(value, set()) - {n}:
                for place in _places_of_reads(fusion, reader, value) or [first[reader]]:
                    earlier, later = (reader, n) if place < first[n] else (n, reader)
                    before[later].add(earlier)
    for one, other in itertools.pairwise(fusion.ordered):
        before[other].add(one)
    for n, group in fusion.groups.items():
        for view in group.destinations.values():
            before[n] |= readers.get(view.value, set()) - {n}
    after: dict[int, list[int]] = {n: [] for n in groups}
    for n, needed in before.items():
        for earlier in needed:
            after[earlier].append(n)
    left = {n: len(needed) for n, needed in before.items()}
    ready = [(first[n], n) for n, count in left.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(n)
        for later in after[n]:
            left[later] -= 1
            if not left[later]:
                heapq.heappush(ready, (first[later], later))
    if len(order) < len(groups):
        raise Cyclic
    needed = {*readers, *(view.value for view in fusion.graph.output_views())}
    return [n for n in order if n not in fusion.extern_calls or not _is_unused(fusion.extern_calls[n], needed)]


def _places_of_reads(fusion: Fusion, number: int, value: Value) -> list[int]:
    """Places in the graph of a group's operations, or a call, that read a value themselves."""
    group = fusion.groups.get(number)
    operations = group.computed if group else [fusion.extern_calls[number]]
    reading = [each for each in operations if any(view.value is value for view in each.operands)]
    return [fusion.place_of[operation] for operation in reading]


def is_after(operation: Operation) -> bool:
    """True for a call that only puts off what reads its first operand: it is no step of a plan."""
    return isinstance(operation, Call) and operation.operator is after


def _is_unused(operation: Operation, needed: Container[int]) -> bool:
    """True for an ``arange`` that only programs read, which know their channels' numbers without it."""
    return any(map(counts_up, operation.results)) and operation.results[0] not in needed


def reads_of(fusion: Fusion, number: int) -> list[View]:
    """Views that a group or call reads from memory, without its own results."""
    call = fusion.extern_calls.get(number)
    return reads_of_group(fusion.groups[number]) if call is None else call.operands


def reads_of_group(group: FusionGroup) -> list[View]:
    """Views that a group reads from memory, without its own results."""
    anchor_operands = group.anchor.operands if group.anchor else []
    gathered = [view for gather in group.gathers.values() for view in (gather.table, gather.index)]
    return [*anchor_operands, *(view for view, _ in group.inputs_in_memory()), *gathered]


def needed_in_memory(fusion: Fusion, groups: Iterable[int]) -> set[Value]:
    """Values that these groups or the graph's caller read from memory, with copies that are slices of such values."""
    values = {view.value for number in groups for view in reads_of(fusion, number)}
    values |= {view.value for view in fusion.graph.output_views()}
    parts = [item for group in fusion.groups.values() for item in group.parts.items()]
    appended = [view.value for _, view in parts if view.value in values]
    while appended:  # they lie in the memory of others
        if (memory := memory_of(appended.pop())) is not None and memory.value not in values:
            values.add(memory.value)
            appended.append(memory.value)
    return values | {part for part, view in parts if view.value in values}
