"""Results that need no memory of their own: vectors of channels that a group computes to be copied into tensors that
are there, as batch norm's running statistics, and what lies as a tensor does that nobody reads afterwards."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import flop_registry

from ..ir.graph import Call, Conv, ConvGrads, Map, Value, View
from .greedy import Fusion
from .group import FusionGroup, InputKey
from .schedule import needed_in_memory, reads_of

_copy = torch.ops.aten.copy_.default


def reinplace(fusion: Fusion) -> None:
    """Takes the copies away, and has the groups write (Group.into)."""
    readers = _readers(fusion)
    outputs = {view.value for view in fusion.graph.output_views()}
    for number, operation in list(fusion.extern_calls.items()):
        if not (isinstance(operation, Call) and operation.operator is _copy and len(operation.args) == 2):
            continue
        to, source = operation.args
        if not isinstance(source, View) or readers[source.value] != {number} or source.value in outputs:
            continue
        group = _writer(fusion, to, source)
        if group is None:
            continue
        others = readers[to.value] - {number, group.number}
        if any(fusion.needs[each] >> group.number & 1 for each in others):
            continue  # it reads the old values after the group
        group.into[source.value] = to
        del fusion.extern_calls[number]


def reuse_buffers(fusion: Fusion) -> None:
    """Has groups write results over what they alone read (Group.over): the peak of memory is lower by those. Each
    element is read by the thread that writes there, for the last time before it does: so not the rows of a table, which
    others read."""
    readers, outputs = _readers(fusion), {view.value for view in fusion.graph.output_views()}
    stored = needed_in_memory(fusion, (*fusion.groups, *fusion.extern_calls))
    shared = {view.value for group in fusion.groups.values() for view in group.parts.values()}
    for group in fusion.groups.values():
        if group.anchor or any(group.space.kind(each) == "transposed" for each in group.copies.values()):
            continue
        gathered = {view.value for each in group.gathers.values() for view in (each.table, each.index)}
        needed = outputs | shared | gathered | group.gathers.keys()
        free = {
            key: view
            for key, view in group.inputs.items()
            if readers.get(view.value) == {group.number}
            and view.value not in needed
            and _is_by_itself(fusion, view)
            and sum(value == view.value for value, _, _ in group.inputs) == 1
        }
        for operation in group.operations:
            result = operation.results[0]
            if not isinstance(operation, Map) or operation in group.per_row:
                continue
            if result not in stored or result in group.into.keys() | group.parts.keys():
                continue
            read = group.traced(operation)[1] if free else {}
            over = next((key for key in free if key in read and _lie_alike(group, result, key, free[key])), None)
            if over:
                group.over[result] = free.pop(over)


def _readers(fusion: Fusion) -> dict[Value, set[int]]:
    """For each value the groups that read it in memory."""
    readers: dict[Value, set[int]] = {}
    for number in (*fusion.groups, *fusion.extern_calls):
        for view in reads_of(fusion, number):
            readers.setdefault(view.value, set()).add(number)
    return readers


def _is_by_itself(fusion: Fusion, view: View) -> bool:
    """Whether the graph makes its value, in memory that is no other's. A call's result may be what the call was given,
    though its schema does not say so; that of a matrix product, a convolution or attention is not."""
    maker = view.value.maker
    group = fusion.groups.get(fusion.group_of.get(maker, -1))
    if group is not None:
        return view.value not in group.into.keys() | group.parts.keys()
    if isinstance(maker, Call):
        is_known = maker.operator.namespace == "aten" and maker.operator.overloadpacket in flop_registry
        return is_known and not maker.parts
    return isinstance(maker, Conv | ConvGrads)


def _lie_alike(group: FusionGroup, result: Value, key: InputKey, view: View) -> bool:
    """Whether a result's element is where that of the view is by which it is computed, in memory of one size: that of
    rows with zeros behind them, say."""
    return (
        key[2] == group.copies.get(result, group.full_map)
        and result.layout == view.layout
        and result.layout.numel == group.numel
        and result.dtype == view.value.dtype
        and (result.memory or result.layout) == (view.value.memory or view.value.layout)
    )


def _writer(fusion: Fusion, to: View, source: View) -> FusionGroup | None:
    """The group that computes it and can write it there."""
    value, maker = to.value, source.value.maker
    if value.maker is not None or not isinstance(maker, Map) or source.value.dtype != value.dtype:
        return None
    if to.layout != value.layout or source.layout != source.value.layout:
        return None
    if len(to.layout.sizes) != 1 or not to.layout.is_dense or to.layout != source.layout:
        return None
    group = fusion.groups.get(fusion.group_of.get(maker, -1))
    if group is None or group.anchor or source.layout.numel == group.numel or maker in group.per_row:
        return None
    if any(each.value is value for each in group.into.values()):
        return None
    # Nothing else is computed from what was there: other blocks of the kernel may still read it.
    for other in group.operations:
        if other is not maker and any(view.value is value for view in group.traced(other)[1].values()):
            return None
    return group
