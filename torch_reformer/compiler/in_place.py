"""Vectors of channels that a region computes to be copied into tensors that are there, as batch norm's running
statistics: the region's kernel writes them there itself."""

from __future__ import annotations

import torch

from .grouping import Grouping
from .ir import Call, Map, View
from .regions import Region

_copy = torch.ops.aten.copy_.default


def write_in_place(grouping: Grouping) -> None:
    """Takes the copies away, and has the regions write (Region.into)."""
    readers: dict[int, set[int]] = {}  # value (id) -> groups
    for number, operation in grouping.alone.items():
        for view in operation.operands:
            readers.setdefault(id(view.value), set()).add(number)
    for number, region in grouping.regions.items():
        views = [*region.leaves.values(), *(region.anchor.operands if region.anchor else ())]
        for view in views:
            readers.setdefault(id(view.value), set()).add(number)
    outputs = {id(view.value) for view in grouping.graph.output_views()}
    for number, operation in list(grouping.alone.items()):
        if not (isinstance(operation, Call) and operation.operator is _copy and len(operation.args) == 2):
            continue
        to, source = operation.args
        if not isinstance(source, View) or readers[id(source.value)] != {number} or id(source.value) in outputs:
            continue
        region = _writer(grouping, to, source)
        if region is None:
            continue
        others = readers[id(to.value)] - {number, region.number}
        if any(grouping.needs[each] >> region.number & 1 for each in others):
            continue  # it reads the old values after the region
        region.into[id(source.value)] = to
        del grouping.alone[number]


def _writer(grouping: Grouping, to: View, source: View) -> Region | None:
    """The region that computes it and can write it there."""
    value, maker = to.value, source.value.maker
    if value.maker is not None or not isinstance(maker, Map) or source.value.dtype != value.dtype:
        return None
    if to.layout != value.layout or source.layout != source.value.layout:
        return None
    if len(to.layout.sizes) != 1 or not to.layout.is_dense or to.layout != source.layout:
        return None
    region = grouping.regions.get(grouping.group_of.get(id(maker), -1))
    if region is None or region.anchor or source.layout.numel == region.numel or id(maker) in region.of_rows:
        return None
    if any(each.value is value for each in region.into.values()):
        return None
    # Nothing else is computed from what was there: other blocks of the kernel may still read it.
    for other in region.operations:
        if other is not maker and any(view.value is value for view in region.traced(other)[1].values()):
            return None
    return region
