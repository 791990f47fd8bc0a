"""Copies in which elements of successive rows become adjacent (lowering/contiguous.py): on GPUs the kernels that read such a
copy, or the one that computes what is copied, turn it themselves, and there is no copy."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Map, Value, View
from ..ir.iteration_space import Space, digits_of, find_space, inverse
from .fuse_copies import Copy, add, is_computed
from .greedy import Grouping
from .group import Leaf, Region, are_many_placed, are_many_turned, same_kind

_contiguous = torch.ops.reformer._contiguous.default
DEVICES = ("cuda",)  # kernels of others would read element by element


def turn(grouping: Grouping) -> None:
    outputs = {view.value for view in grouping.graph.output_views()}
    for number, call in list(grouping.alone.items()):
        if not isinstance(call, Call) or call.operator is not _contiguous:
            continue
        (result,) = call.results
        if result.device.type not in DEVICES:
            continue
        if result not in outputs and _read(grouping, call, result):
            del grouping.alone[number]
        elif (maker := _writer(grouping, call, result)) is not None:
            grouping.replace(number, maker.number)
            del grouping.alone[number]


def _read(grouping: Grouping, call: Call, result: Value) -> bool:
    """Whether all that read the copy read what is copied now."""
    (source,) = call.args
    leaf = source.value, source.layout, digits_of(result.layout, source.layout)
    if any(view.value is result for each in grouping.alone.values() for view in each.operands):
        return False
    found: list[tuple[Region, Space, list[Leaf]]] = []
    for region in grouping.regions.values():
        if region.anchor and any(view.value is result for view in region.anchor.operands):
            return False
        leaves = [leaf for leaf, view in region.leaves.items() if view.value is result]
        if not leaves:
            continue
        space = _space(region, leaf, leaves)
        if space is None:
            return False
        found.append((region, space, leaves))
    for region, space, leaves in found:
        region.space = space
        region.operands = region.operands | {leaf[2]}
        for each in leaves:
            del region.leaves[each]
            region.turned[each] = leaf
        region.leaves[leaf] = source
        number = grouping.group_that_makes(source.value)
        if number is not None:
            grouping.readers.setdefault(source.value, []).append(region.number)
    return True


def _space(region: Region, leaf: Leaf, leaves: list[Leaf]) -> Space | None:
    """That in which the region reads this leaf in the place of those, or None."""
    if region.anchor or any(each[2] != region.whole or not region.leaves[each].is_whole for each in leaves):
        return None
    space = find_space(region.numel, region.operands | {leaf[2]}, region.reductions, turns=True)
    if space is None or not region.takes(space) or not all(map(space.is_placed, region.copies.values())):
        return None
    read = [leaf, *(each for each in region.leaves if each not in leaves)]
    if are_many_placed(space, read, len(region.copies)) or are_many_turned(space, read, region.copies.values()):
        return None
    return space


def _writer(grouping: Grouping, call: Call, result: Value) -> Region | None:
    """The region that writes the copy now."""
    (source,) = call.args
    digits = inverse(digits_of(result.layout, source.layout))
    region = grouping.regions.get(grouping.group_that_makes(source.value))
    if digits is None or region is None or source.layout.numel != source.value.layout.numel:
        return None
    operation = Map([View(source.value, source.layout)], "turn", lambda x: x)
    operation.results = [result]
    if not is_computed(region, source.value.maker) or not same_kind(region, [operation]):
        return None
    copy = Copy(operation, source.value.maker, digits, [], 1)
    grouping.place_of[operation] = grouping.place_of[call]
    if not add(grouping, region, copy, [operation], turns=True):
        return None
    grouping.group_of[call] = region.number  # the graph stays as it is, for other groupings of it
    return region
