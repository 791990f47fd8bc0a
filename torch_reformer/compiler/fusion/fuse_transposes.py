"""Fuse transposing copies (ir/contiguous.py) into the kernels that read them or the one that computes the source.

A transposing copy makes elements of successive rows adjacent. GPUs' kernels transpose tiles themselves."""

from __future__ import annotations

import torch

from ..ir.access import Access, relaid
from ..ir.digits import with_strides, without_strides
from ..ir.graph import Call, Map, Value, View
from ..ir.index_maps import index_map_of, inverse
from ..ir.iteration_space import IterationSpace, find_space
from ..ir.kernel_limits import MOST_OPERATIONS, MOST_OUTPUTS
from . import iteration_order
from .fuse_copies import Copy, add, is_computed
from .greedy import Fusion
from .group import FusionGroup, InputKey, has_too_many_strided, has_too_many_transposed, same_kind

_MOST_APART = 3  # times the bytes of a group: a copy moves its own twice more
_contiguous = torch.ops.reformer._contiguous.default


def fuse_transposes(fusion: Fusion) -> None:
    """Replace transposing copies by transposed reads (FusionGroup.transposed) or writes (FusionGroup.copies)."""
    outputs = {view.value for view in fusion.graph.output_views()}
    for number, call in list(fusion.extern_calls.items()):
        if not isinstance(call, Call) or call.operator is not _contiguous:
            continue
        (result,) = call.results
        if result.device.type not in iteration_order.DEVICES:
            continue
        if result not in outputs and _read(fusion, call, result):
            del fusion.extern_calls[number]
        elif (maker := _writer(fusion, call, result)) is not None:
            fusion.replace(number, maker.number)
            del fusion.extern_calls[number]


def _read(fusion: Fusion, call: Call, result: Value) -> bool:
    """Have all readers of the copy read its source; False, and nothing is changed, if one of them can't."""
    (source,) = call.args
    if any(view.value is result for other in fusion.extern_calls.values() for view in other.operands):
        return False
    readers: list[tuple[FusionGroup, FusionGroup]] = []
    for group in fusion.groups.values():
        if group.anchor and any(view.value is result for view in group.anchor.operands):
            return False
        if any(view.value is result for view in group.inputs.values()):
            changed = _reading(group, source, result)
            if changed is None:
                return False
            readers.append((group, changed))
    for group, changed in readers:
        group.restore(changed)
        number = fusion.group_that_makes(source.value)
        if number is not None:
            fusion.readers.setdefault(source.value, []).append(group.number)
    return True


def _reading(group: FusionGroup, source: View, result: Value) -> FusionGroup | None:
    """The group as it reads the source of a copy instead of its result; None if it can't."""
    changed = group.copy()
    for key in [key for key, view in group.inputs.items() if view.value is result]:
        new = _in_source(group, key, source, result)
        if new is None:
            return None
        del changed.inputs[key]
        changed.transposed[key] = new
        changed.inputs[new] = View(source.value, new[1])
        changed.operands = changed.operands | {new[2]}
        if key[2] != group.full_map and all(index_map != key[2] for *_, index_map in changed.inputs):
            changed.operands.remove(key[2])
    space = None if group.anchor else _space(changed)
    if space is None or not group.supports(space):
        return None
    changed.space = space
    return changed


def _in_source(group: FusionGroup, key: InputKey, source: View, result: Value) -> InputKey | None:
    """The key by which the group reads the source instead of the copy; None if there is none."""
    _, layout, index_map = key
    is_access = isinstance(index_map, Access)
    access = index_map if is_access else Access((0,), with_strides(index_map, group.numel), ())
    found = relaid(access, layout, result.layout, source.layout)
    if found is None:
        return None
    access, layout = found
    return source.value, layout, access if is_access else without_strides(access.digits)


def _space(group: FusionGroup) -> IterationSpace | None:
    """Iteration space of a group that reads or writes transposed tensors; None if there is none, or if a kernel would
    read so many elements apart that copies cost less."""
    read, written = list(group.inputs), list(group.copies.values())
    operands = {*group.operands, *written}
    space = find_space(group.numel, operands, group.reductions, transposes=True)
    if space is not None and not all(map(space.is_strided, written)):
        space = None
    if space is not None and has_too_many_strided(space, read, written):
        space = None
    if space is not None and has_too_many_transposed(space, read, written):
        space = None
    if not iteration_order.may_reorder(group):
        return space
    tensors = iteration_order.tensors_of(group)
    space = iteration_order.best_space(group, space) or space
    most = _MOST_APART * sum(tensor.bytes for tensor in tensors)
    return None if space is None or iteration_order.cost_of(space, tensors) > most else space


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
    if not add(fusion, group, copy, transposes=True) and not _add_in_order(fusion, group, copy, operation):
        return None
    fusion.group_of[call] = group.number  # the graph itself is unchanged, as other fusions share it
    return group


def _add_in_order(fusion: Fusion, group: FusionGroup, copy: Copy, operation: Map) -> bool:
    """Add a copy to a group that then iterates in another order; False if it can't."""
    changed, result = group.copy(), operation.results[0]
    changed.operations.append(operation)
    changed.copies[result] = copy.index_map
    changed.live_results.add(result)
    if len(changed.live_results) > MOST_OUTPUTS or len(changed.computed) > MOST_OPERATIONS:
        return False
    if not iteration_order.may_reorder(changed) or (space := _space(changed)) is None:
        return False
    changed.space = space
    group.restore(changed)
    fusion.group_of[operation] = group.number
    return True
