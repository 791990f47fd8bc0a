"""Concatenations of what one kernel computes, as the gradient of what was split: it writes each part where it belongs,
in place of its own memory or besides."""

from __future__ import annotations

import torch

from ...runtime.dtypes import FLOATS
from ..ir.graph import Call, Map, Operation, Value, View
from ..ir.iteration_space import index_map_of, is_strided
from ..ir.layout import Layout
from .fuse_copies import Copy, add, is_computed
from .greedy import Fusion
from .group import FusionGroup, same_kind
from .schedule import needed_in_memory

_cat = torch.ops.aten.cat.default


def fuse_concats(fusion: Fusion) -> None:
    """Has groups write what they compute to parts of other tensors (Group.parts): all that they can, or some."""
    of_regions: dict[int, list[int]] = {}
    for number, call in fusion.extern_calls.items():
        maker = _maker(fusion, call)
        if maker is not None:
            of_regions.setdefault(maker, []).append(number)
    for maker, numbers in of_regions.items():
        group = fusion.groups[maker]
        if len(numbers) == 1 or not _add(fusion, group, numbers):
            for number in numbers:
                _add(fusion, group, [number])


def _maker(fusion: Fusion, call: Operation) -> int | None:
    """The group that makes all that a call concatenates."""
    if not isinstance(call, Call) or call.operator is not _cat:
        return None
    makers, (result,) = {fusion.group_that_makes(view.value) for view in call.args[0]}, call.results
    if len(makers) > 1 or result.dtype not in FLOATS or not result.layout.is_dense:
        return None
    return next((maker for maker in makers if maker in fusion.groups), None)


def _parts(result: Value, views: list[View], dim: int = 0) -> list[View]:
    """What of the result each of the views becomes."""
    found, offset, strides = [], 0, result.layout.strides
    for view in views:
        found.append(View(result, Layout(view.layout.sizes, strides, offset)))
        offset += view.layout.sizes[dim] * strides[dim]
    return found


def _add(fusion: Fusion, group: FusionGroup, numbers: list[int]) -> bool:
    """Has the group do what these calls do, if it can."""
    before = group.copy()
    calls = [fusion.extern_calls[number] for number in numbers]
    group.live_results -= {view.value for call in calls for view in call.operands} - _read(fusion, numbers)
    for call in calls:
        for view, part in zip(call.args[0], _parts(call.results[0], *call.args), strict=True):
            if not _write(fusion, group, call, view, part):
                group.restore(before)
                return False
    for number, call in zip(numbers, calls, strict=True):
        fusion.group_of[call] = group.number  # the graph stays as it is, for other fusions of it
        fusion.replace(number, group.number)
        del fusion.extern_calls[number]
    return True


def _read(fusion: Fusion, but: list[int]) -> set[Value]:
    """The values that other groups than these read, or the graph's caller."""
    groups = (each for each in (*fusion.groups, *fusion.extern_calls) if each not in but)
    return needed_in_memory(fusion, groups)


def _write(fusion: Fusion, group: FusionGroup, call: Call, view: View, part: View) -> bool:
    source, layout = view.value, Layout(part.layout.sizes, part.layout.strides)
    if view.layout != source.layout or source.dtype != part.value.dtype or not is_computed(group, source.maker):
        return False
    index_map = index_map_of(source.layout, layout)
    operation = Map([view], "part", lambda x: x)
    value = fusion.graph.value(layout, source.dtype, source.device)
    operation.results, value.maker = [value], operation
    if not is_strided(index_map) or not same_kind(group, [operation]):
        return False
    fusion.place_of[operation] = fusion.place_of[call]
    if not add(fusion, group, Copy(operation, source.maker, index_map, [], 1), [operation]):
        return False
    group.parts[value] = part
    return True
