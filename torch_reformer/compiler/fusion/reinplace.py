"""Results that need no memory of their own: vectors of channels that a region computes to be copied into tensors that
are there, as batch norm's running statistics, and what lies as a tensor does that nobody reads afterwards."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import flop_registry

from ..ir.graph import Call, Conv, ConvGrads, Map, Value, View
from .greedy import Grouping
from .group import Leaf, Region
from .schedule import needed_in_memory, reads_of

_copy = torch.ops.aten.copy_.default


def write_in_place(grouping: Grouping) -> None:
    """Takes the copies away, and has the regions write (Region.into)."""
    readers = _readers(grouping)
    outputs = {view.value for view in grouping.graph.output_views()}
    for number, operation in list(grouping.alone.items()):
        if not (isinstance(operation, Call) and operation.operator is _copy and len(operation.args) == 2):
            continue
        to, source = operation.args
        if not isinstance(source, View) or readers[source.value] != {number} or source.value in outputs:
            continue
        region = _writer(grouping, to, source)
        if region is None:
            continue
        others = readers[to.value] - {number, region.number}
        if any(grouping.needs[each] >> region.number & 1 for each in others):
            continue  # it reads the old values after the region
        region.into[source.value] = to
        del grouping.alone[number]


def write_over(grouping: Grouping) -> None:
    """Has regions write results over what they alone read (Region.over): the peak of memory is lower by those. Each
    element is read by the thread that writes there, for the last time before it does: so not the rows of a table, which
    others read."""
    readers, outputs = _readers(grouping), {view.value for view in grouping.graph.output_views()}
    stored = needed_in_memory(grouping, (*grouping.regions, *grouping.alone))
    shared = {view.value for region in grouping.regions.values() for view in region.parts.values()}
    for region in grouping.regions.values():
        if region.anchor or any(region.space.kind(each) == "turned" for each in region.copies.values()):
            continue
        looked_up = {view.value for each in region.look_ups.values() for view in (each.table, each.index)}
        needed = outputs | shared | looked_up | region.look_ups.keys()
        free = {
            key: view
            for key, view in region.leaves.items()
            if readers.get(view.value) == {region.number}
            and view.value not in needed
            and _is_by_itself(grouping, view)
            and sum(value == view.value for value, _, _ in region.leaves) == 1
        }
        for operation in region.operations:
            result = operation.results[0]
            if not isinstance(operation, Map) or operation in region.of_rows:
                continue
            if result not in stored or result in region.into.keys() | region.parts.keys():
                continue
            read = region.traced(operation)[1] if free else {}
            over = next((key for key in free if key in read and _lie_alike(region, result, key, free[key])), None)
            if over:
                region.over[result] = free.pop(over)


def _readers(grouping: Grouping) -> dict[Value, set[int]]:
    """For each value the groups that read it in memory."""
    readers: dict[Value, set[int]] = {}
    for number in (*grouping.regions, *grouping.alone):
        for view in reads_of(grouping, number):
            readers.setdefault(view.value, set()).add(number)
    return readers


def _is_by_itself(grouping: Grouping, view: View) -> bool:
    """Whether the graph makes its value, in memory that is no other's. A call's result may be what the call was given,
    though its schema does not say so; that of a matrix product, a convolution or attention is not."""
    maker = view.value.maker
    region = grouping.regions.get(grouping.group_of.get(maker, -1))
    if region is not None:
        return view.value not in region.into.keys() | region.parts.keys()
    if isinstance(maker, Call):
        is_known = maker.operator.namespace == "aten" and maker.operator.overloadpacket in flop_registry
        return is_known and not maker.parts
    return isinstance(maker, Conv | ConvGrads)


def _lie_alike(region: Region, result: Value, key: Leaf, view: View) -> bool:
    """Whether a result's element is where that of the view is by which it is computed, in memory of one size: that of
    rows with zeros behind them, say."""
    return (
        key[2] == region.copies.get(result, region.whole)
        and result.layout == view.layout
        and result.layout.numel == region.numel
        and result.dtype == view.value.dtype
        and (result.memory or result.layout) == (view.value.memory or view.value.layout)
    )


def _writer(grouping: Grouping, to: View, source: View) -> Region | None:
    """The region that computes it and can write it there."""
    value, maker = to.value, source.value.maker
    if value.maker is not None or not isinstance(maker, Map) or source.value.dtype != value.dtype:
        return None
    if to.layout != value.layout or source.layout != source.value.layout:
        return None
    if len(to.layout.sizes) != 1 or not to.layout.is_dense or to.layout != source.layout:
        return None
    region = grouping.regions.get(grouping.group_of.get(maker, -1))
    if region is None or region.anchor or source.layout.numel == region.numel or maker in region.of_rows:
        return None
    if any(each.value is value for each in region.into.values()):
        return None
    # Nothing else is computed from what was there: other blocks of the kernel may still read it.
    for other in region.operations:
        if other is not maker and any(view.value is value for view in region.traced(other)[1].values()):
            return None
    return region
