"""Fuse transposing copies (ir/contiguous.py) into the kernels that read them or the one that computes the source.

A transposing copy makes elements of successive rows adjacent. GPUs' kernels transpose tiles themselves."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Map, Value, View
from ..ir.iteration_space import IterationSpace, find_space, index_map_of, inverse
from .fuse_copies import Copy, add, is_computed
from .greedy import Fusion
from .group import FusionGroup, InputKey, has_too_many_strided, has_too_many_transposed, same_kind

_contiguous = torch.ops.reformer._contiguous.default
DEVICES = ("cuda",)  # kernels of other devices would read element by element


def fuse_transposes(fusion: Fusion) -> None:
    """Replace transposing copies by transposed reads (FusionGroup.transposed) or writes (FusionGroup.copies)."""
    outputs = {view.value for view in fusion.graph.output_views()}
    for number, call in list(fusion.extern_calls.items()):
        if not isinstance(call, Call) or call.operator is not _contiguous:
            continue
        (result,) = call.results
        if result.device.type not in DEVICES:
            continue
        if result not in outputs and _read(fusion, call, result):
            del fusion.extern_calls[number]
        elif (maker := _writer(fusion, call, result)) is not None:
            fusion.replace(number, maker.number)
            del fusion.extern_calls[number]


def _read(fusion: Fusion, call: Call, result: Value) -> bool:
    """Have all readers of the copy read its source; False, and nothing is changed, if one of them can't."""
    (source,) = call.args
    input_key = source.value, source.layout, index_map_of(result.layout, source.layout)
    if any(view.value is result for other in fusion.extern_calls.values() for view in other.operands):
        return False
    readers: list[tuple[FusionGroup, IterationSpace, list[InputKey]]] = []
    for group in fusion.groups.values():
        if group.anchor and any(view.value is result for view in group.anchor.operands):
            return False
        inputs = [key for key, view in group.inputs.items() if view.value is result]
        if not inputs:
            continue
        space = _space(group, input_key, inputs)
        if space is None:
            return False
        readers.append((group, space, inputs))
    for group, space, inputs in readers:
        group.space = space
        group.operands = group.operands | {input_key[2]}
        for key in inputs:
            del group.inputs[key]
            group.transposed[key] = input_key
        group.inputs[input_key] = source
        number = fusion.group_that_makes(source.value)
        if number is not None:
            fusion.readers.setdefault(source.value, []).append(group.number)
    return True


def _space(group: FusionGroup, input_key: InputKey, inputs: list[InputKey]) -> IterationSpace | None:
    """Iteration space in which the group reads ``input_key`` instead of ``inputs``; None if there is none."""
    if group.anchor or any(key[2] != group.full_map or not group.inputs[key].is_full for key in inputs):
        return None
    copies = group.copies.values()
    operands = group.operands | {input_key[2], *copies}
    space = find_space(group.numel, operands, group.reductions, transposes=True)
    if space is None or not group.supports(space) or not all(map(space.is_strided, copies)):
        return None
    read = [input_key, *(key for key in group.inputs if key not in inputs)]
    if has_too_many_strided(space, read, copies) or has_too_many_transposed(space, read, copies):
        return None
    return space


def _writer(fusion: Fusion, call: Call, result: Value) -> FusionGroup | None:
    """Have the group that computes the copy's source write the copy; None if there is none that can."""
    (source,) = call.args
    index_map = inverse(index_map_of(result.layout, source.layout))
    group = fusion.groups.get(fusion.group_that_makes(source.value))
    if index_map is None or group is None or source.layout.numel != source.value.layout.numel:
        return None
    operation = Map([View(source.value, source.layout)], "transpose", lambda x: x)
    operation.results = [result]
    if not is_computed(group, source.value.maker) or not same_kind(group, [operation]):
        return None
    copy = Copy([operation], operation.inputs[0], index_map)
    fusion.place_of[operation] = fusion.place_of[call]
    if not add(fusion, group, copy, transposes=True):
        return None
    fusion.group_of[call] = group.number  # the graph itself is unchanged, as other fusions share it
    return group
