"""Concatenations of what one kernel computes, as the gradient of what was split: it writes each part where it belongs,
in place of its own memory or besides."""

from __future__ import annotations

import torch

from ..ir.graph import FLOATS, Call, Map, Operation, Value, View
from ..ir.iteration_space import digits_of, is_placed
from ..ir.layout import Layout
from .fuse_copies import Copy, add, is_computed
from .greedy import Grouping
from .group import Region, same_kind
from .schedule import needed_in_memory

_cat = torch.ops.aten.cat.default


def write_parts(grouping: Grouping) -> None:
    """Has regions write what they compute to parts of other tensors (Region.parts): all that they can, or some."""
    of_regions: dict[int, list[int]] = {}
    for number, call in grouping.alone.items():
        maker = _maker(grouping, call)
        if maker is not None:
            of_regions.setdefault(maker, []).append(number)
    for maker, numbers in of_regions.items():
        region = grouping.regions[maker]
        if len(numbers) == 1 or not _add(grouping, region, numbers):
            for number in numbers:
                _add(grouping, region, [number])


def _maker(grouping: Grouping, call: Operation) -> int | None:
    """The region that makes all that a call concatenates."""
    if not isinstance(call, Call) or call.operator is not _cat:
        return None
    makers, (result,) = {grouping.group_that_makes(view.value) for view in call.args[0]}, call.results
    if len(makers) > 1 or result.dtype not in FLOATS or not result.layout.is_dense:
        return None
    return next((maker for maker in makers if maker in grouping.regions), None)


def _parts(result: Value, views: list[View], dim: int = 0) -> list[View]:
    """What of the result each of the views becomes."""
    found, offset, strides = [], 0, result.layout.strides
    for view in views:
        found.append(View(result, Layout(view.layout.sizes, strides, offset)))
        offset += view.layout.sizes[dim] * strides[dim]
    return found


def _add(grouping: Grouping, region: Region, numbers: list[int]) -> bool:
    """Has the region do what these calls do, if it can."""
    before = {name: vars(region)[name] for name in ("space", "reductions")}
    before |= {name: vars(region)[name].copy() for name in ("operations", "copies", "parts", "open_results")}
    calls = [grouping.alone[number] for number in numbers]
    region.open_results -= {view.value for call in calls for view in call.operands} - _read(grouping, numbers)
    for call in calls:
        for view, part in zip(call.args[0], _parts(call.results[0], *call.args), strict=True):
            if not _write(grouping, region, call, view, part):
                vars(region).update(before)
                return False
    for number, call in zip(numbers, calls, strict=True):
        grouping.group_of[call] = region.number  # the graph stays as it is, for other groupings of it
        grouping.replace(number, region.number)
        del grouping.alone[number]
    return True


def _read(grouping: Grouping, but: list[int]) -> set[Value]:
    """The values that other groups than these read, or the graph's caller."""
    groups = (each for each in (*grouping.regions, *grouping.alone) if each not in but)
    return needed_in_memory(grouping, groups)


def _write(grouping: Grouping, region: Region, call: Call, view: View, part: View) -> bool:
    source, layout = view.value, Layout(part.layout.sizes, part.layout.strides)
    if view.layout != source.layout or source.dtype != part.value.dtype or not is_computed(region, source.maker):
        return False
    digits = digits_of(source.layout, layout)
    operation = Map([view], "part", lambda x: x)
    value = grouping.graph.value(layout, source.dtype, source.device)
    operation.results, value.maker = [value], operation
    if not is_placed(digits) or not same_kind(region, [operation]):
        return False
    grouping.place_of[operation] = grouping.place_of[call]
    if not add(grouping, region, Copy(operation, source.maker, digits, [], 1), [operation]):
        return False
    region.parts[value] = part
    return True
