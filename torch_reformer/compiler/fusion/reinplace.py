"""Results that need no new memory: written to an existing destination, or over an input that is dead after the kernel.

Destinations are the targets of copies into a graph's inputs: batch norm's running statistics, and the parameters and
state of an optimizer."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import flop_registry

from ..ir.graph import Call, Conv, ConvGrads, Map, Value, View
from ..ir.layout import Layout
from .greedy import Fusion
from .group import FusionGroup, InputKey
from .schedule import needed_in_memory, reads_of

_copy = torch.ops.aten.copy_.default


def reinplace(fusion: Fusion) -> None:
    """Replace copies of full-size results and channel vectors into the graph's inputs by writes of their groups
    (FusionGroup.destinations)."""
    readers = _readers(fusion)
    outputs = {view.value for view in fusion.graph.output_views()}
    for number, operation in list(fusion.extern_calls.items()):
        if not (isinstance(operation, Call) and operation.operator is _copy and len(operation.args) == 2):
            continue
        target, source = operation.args
        if not isinstance(source, View) or source.value in outputs:
            continue
        group = _writer(fusion, target, source)
        if group is None:
            continue
        others = readers[target.value] - {number, group.number}
        if any(fusion.needs[other] >> group.number & 1 for other in others):
            continue  # it would read the old values after the group has run
        group.destinations[source.value] = target
        del fusion.extern_calls[number]


def reuse_buffers(fusion: Fusion) -> None:
    """Write results over inputs that no other group reads (FusionGroup.reused), which lowers the peak of memory.

    The thread that overwrites an element must be the last to read it, so gathered rows of a table, which other threads
    read too, are never reused."""
    readers, outputs = _readers(fusion), {view.value for view in fusion.graph.output_views()}
    stored = needed_in_memory(fusion, (*fusion.groups, *fusion.extern_calls))
    shared = {view.value for group in fusion.groups.values() for view in group.parts.values()}
    for group in fusion.groups.values():
        if group.anchor or group.space.order:
            continue
        if any(group.space.kind(index_map) == "transposed" for index_map in group.copies.values()):
            continue
        gathered = {view.value for gather in group.gathers.values() for view in (gather.table, gather.index)}
        needed = outputs | shared | gathered | group.gathers.keys()
        free = {
            key: view
            for key, view in group.inputs.items()
            if readers.get(view.value) == {group.number}
            and view.value not in needed
            and _owns_memory(fusion, view)
            and sum(value == view.value for value, _, _ in group.inputs) == 1
        }
        for operation in group.operations:
            result = operation.results[0]
            if not isinstance(operation, Map) or operation in group.per_row:
                continue
            if result not in stored or result in group.destinations.keys() | group.parts.keys():
                continue
            read = group.traced(operation)[1] if free else {}
            reused = next((key for key in free if key in read and _same_place(group, result, key, free[key])), None)
            if reused:
                group.reused[result] = free.pop(reused)


def _readers(fusion: Fusion) -> dict[Value, set[int]]:
    """Groups and calls that read each value from memory."""
    readers: dict[Value, set[int]] = {}
    for number in (*fusion.groups, *fusion.extern_calls):
        for view in reads_of(fusion, number):
            readers.setdefault(view.value, set()).add(number)
    return readers


def _owns_memory(fusion: Fusion, view: View) -> bool:
    """True if the graph makes the view's value, in memory that no other value has.

    A call's result may alias an argument even where the schema does not say so; those of matrix products,
    convolutions and attention, which are in PyTorch's registry of FLOP counts, never do."""
    maker = view.value.maker
    group = fusion.groups.get(fusion.group_of.get(maker, -1))
    if group is not None:
        return view.value not in group.destinations.keys() | group.parts.keys()
    if isinstance(maker, Call):
        has_new_result = maker.operator.namespace == "aten" and maker.operator.overloadpacket in flop_registry
        return has_new_result and not maker.parts
    return isinstance(maker, Conv | ConvGrads)


def _same_place(group: FusionGroup, result: Value, key: InputKey, view: View) -> bool:
    """True if each element of the result has the address of the view's element that it is computed from, and both have
    memory of the same layout, including zeros behind rows."""
    return (
        key[2] == group.copies.get(result, group.full_map)
        and result.layout.matches(view.layout)
        and result.layout.offset == view.layout.offset
        and result.layout.numel == group.numel
        and result.dtype == view.value.dtype
        and _are_same(result.memory or result.layout, view.value.memory or view.value.layout)
    )


def _are_same(one: Layout, other: Layout) -> bool:
    """True if all of the memory has the same elements, perhaps by other dimensions."""
    return one == other or (one.is_row_major and other.is_row_major and one.numel == other.numel)


def _writer(fusion: Fusion, target: View, source: View) -> FusionGroup | None:
    """Group that computes ``source`` and can write it to ``target``; None if there is none."""
    value, maker = target.value, source.value.maker
    if value.maker is not None or not isinstance(maker, Map) or source.value.dtype != value.dtype:
        return None
    if target.layout != value.layout or source.layout != source.value.layout:
        return None
    if not target.layout.is_dense or target.layout != source.layout:
        return None
    group = fusion.groups.get(fusion.group_of.get(maker, -1))
    if group is None or group.anchor or maker in group.per_row:
        return None
    if source.value in group.destinations or any(view.value is value for view in group.destinations.values()):
        return None
    if source.layout.numel == group.numel:
        return group if _may_overwrite(group, maker, target) else None
    if len(target.layout.sizes) != 1:
        return None
    # No other operation may read the old values: other blocks of the kernel may still need them.
    for other in group.operations:
        if other is not maker and any(view.value is value for view in group.traced(other)[1].values()):
            return None
    return group


def _may_overwrite(group: FusionGroup, operation: Map, target: View) -> bool:
    """True if the group can write the operation's full-size result to this input, which it reads, if at all, for the
    same element of the result."""
    result = operation.results[0]
    if group.written_map(result) is not None or any(key[0] is target.value for key in group.transposed):
        return False
    if any(
        gather.table.value is target.value or gather.index.value is target.value for gather in group.gathers.values()
    ):
        return False
    keys = [key for key in group.inputs if key[0] is target.value]
    if not keys:
        return _are_same(result.memory or result.layout, target.layout)
    read = group.traced(operation)[1]
    return len(keys) == 1 and keys[0] in read and _same_place(group, result, keys[0], group.inputs[keys[0]])
