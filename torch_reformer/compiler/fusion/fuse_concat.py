"""Fuse concatenations, such as the gradient of a split, into the kernels that compute their inputs.

A kernel writes an input to its slice of the result, instead of or in addition to its own memory. Inputs that no group
computes are copied by other kernels, as few as possible: one copies all inputs that have equal sizes, such as gradients
of queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterable

from ...runtime.dtypes import FLOATS
from ..ir.concats import concatenated, is_concat, memory_of, parts_of
from ..ir.graph import Call, Map, Operation, Value, View
from ..ir.index_maps import IndexMap, index_map_of, is_strided
from ..ir.iteration_space import find_space
from ..ir.layout import Layout
from .fuse_copies import Copy, add, is_computed
from .greedy import Fusion
from .group import FusionGroup, same_kind
from .schedule import needed_in_memory

_OF_LAUNCH = 1 << 22  # bytes that are moved in the time of a launch
_ALIGNED = 16  # bytes: operators copy results to slices that begin elsewhere (csrc/operators/program.cpp)


def fuse_concats(fusion: Fusion) -> None:
    """Have groups write their results to slices of concatenations (FusionGroup.parts): all of a group's, else some."""
    calls_of: dict[int, list[int]] = {}  # group -> concatenations of its results
    for number, call in fusion.extern_calls.items():
        maker = _maker(fusion, call)
        if maker is not None:
            calls_of.setdefault(maker, []).append(number)
    for maker, numbers in calls_of.items():
        group = fusion.groups[maker]
        if len(numbers) == 1 or not _add(fusion, group, numbers):
            for number in numbers:
                _add(fusion, group, [number])
    for number in list(fusion.extern_calls):
        if _is_concat(fusion.extern_calls[number]):
            _add_to_several(fusion, number)


def _maker(fusion: Fusion, call: Operation) -> int | None:
    """Number of the group that makes all inputs of a concatenation, if the call is one and there is one."""
    if not _is_concat(call):
        return None
    makers = {fusion.group_that_makes(view.value) for view in concatenated(call)}
    return next((maker for maker in makers if maker in fusion.groups), None) if len(makers) == 1 else None


def _is_concat(call: Operation) -> bool:
    """True for a concatenation whose parts kernels can write. PyTorch also takes parts of no elements and one
    dimension."""
    if not is_concat(call):
        return False
    (result,) = call.results
    have_its_dims = all(len(view.layout.sizes) == len(result.layout.sizes) for view in concatenated(call))
    return result.dtype in FLOATS and result.layout.is_dense and result.layout.numel > 0 and have_its_dims


def _comes_before(fusion: Fusion, number: int, call: Call) -> bool:
    """True if the group must end before the memory is complete to which the call appends."""
    memory = memory_of(call.results[0])
    maker = memory and fusion.group_that_makes(memory.value)
    return maker is not None and maker != number and bool(fusion.needs[maker] >> number & 1)


def _add(fusion: Fusion, group: FusionGroup, numbers: list[int]) -> bool:
    """Fuse these calls into the group; False, and the group is unchanged, if they can't be."""
    before = group.copy()
    calls = [fusion.extern_calls[number] for number in numbers]
    group.live_results -= {view.value for call in calls for view in call.operands} - _read(fusion, numbers)
    for call in calls:
        for view, part in parts_of(call):
            if not _write(fusion, group, call, view, part):
                group.restore(before)
                return False
    for number, call in zip(numbers, calls, strict=True):
        fusion.group_of[call] = group.number  # the graph itself is unchanged, as other fusions share it
        fusion.replace(number, group.number)
        del fusion.extern_calls[number]
    return True


def _add_to_several(fusion: Fusion, number: int) -> None:
    """Fuse a call into the groups that make its inputs, and a group for each input that they cannot write, if that
    saves bytes. The result is known after the last of these groups, so it counts as that group's."""
    call, read = fusion.extern_calls[number], _read(fusion, [number])
    before: dict[int, FusionGroup] = {}
    parts, copied, saved = parts_of(call), [], 0
    for view, part in parts:
        maker = fusion.group_that_makes(view.value)
        if maker in fusion.groups:
            before.setdefault(maker, fusion.groups[maker].copy())
            if _write(fusion, fusion.groups[maker], call, view, part):
                saved += view.value.bytes * (1 if view.value in read else 2)
                continue
        copied.append((view, part))
    if not parts or (not saved and call.results[0].device.type == "cpu"):
        return  # there PyTorch copies rows by memcpy
    copies = _copies(fusion, call, copied)
    if copies is None or saved < _OF_LAUNCH * (len(copies) - 1):
        for maker, group in before.items():
            fusion.groups[maker].restore(group)
        for copy in copies or ():
            del fusion.groups[copy]
        return
    # No group needs a copy yet. Among others, one needs the rest.
    writers = [maker for maker in before if any(part.value is call.results[0] for part in _parts_of(fusion, maker))]
    last = next(one for one in copies[-1:] or writers if not any(fusion.needs[other] >> one & 1 for other in writers))
    fusion.group_of[call] = last
    fusion.replace(number, last)
    del fusion.extern_calls[number]


def _parts_of(fusion: Fusion, number: int) -> Iterable[View]:
    return fusion.groups[number].parts.values()


def _copies(fusion: Fusion, call: Call, pairs: list[tuple[View, View]]) -> list[int] | None:
    """Numbers of new groups that copy views to slices of the call's result, as few as possible; None if none can."""
    numbers: list[int] = []
    for view, part in pairs:
        number = next((each for each in numbers if _add_copy(fusion, fusion.groups[each], call, view, part)), None)
        if number is not None:
            fusion.depend(number, [view])
        elif (number := _new_copy(fusion, call, view, part)) is not None:
            numbers.append(number)
        else:
            for each in numbers:
                del fusion.groups[each]
            return None
    return numbers


def _new_copy(fusion: Fusion, call: Call, view: View, part: View) -> int | None:
    """Number of a new group that copies a view to a slice of the call's result; None if none can."""
    space = find_space(part.layout.numel, {_map_of_copy(view, part)}, set())
    if space is None:
        return None
    number = fusion.new_group()
    fusion.groups[number] = FusionGroup(number, space)
    if not _add_copy(fusion, fusion.groups[number], call, view, part):
        del fusion.groups[number]
        return None
    fusion.depend(number, [view])
    return number


def _add_copy(fusion: Fusion, group: FusionGroup, call: Call, view: View, part: View) -> bool:
    """Have a group of copies copy this view, too; False if it can't."""
    layout, value, index_map = _layout_of_copy(part), view.value, _map_of_copy(view, part)
    operands = group.operands | {index_map}
    if layout.numel != group.numel or value.dtype != part.value.dtype:
        return False
    if (space := find_space(group.numel, operands | set(group.copies.values()), set())) is None:
        return False
    before, operation = group.copy(), Map([view], "clone", lambda x: x)
    result = fusion.graph.value(layout, value.dtype, value.device)
    operation.results, result.maker = [result], operation
    fusion.place_of[operation], fusion.group_of[operation] = fusion.place_of[call], group.number
    group.space, group.operands = space, operands
    group.operations.append(operation)
    group.inputs[value, view.layout, index_map] = view
    if _write(fusion, group, call, View(result, layout), part):
        return True
    group.restore(before)
    return False


def _layout_of_copy(part: View) -> Layout:
    """The part's order of memory, without gaps."""
    return Layout(part.layout.sizes, part.layout.strides).packed


def _map_of_copy(view: View, part: View) -> IndexMap:
    return index_map_of(_layout_of_copy(part), view.layout)


def _read(fusion: Fusion, excluded: list[int]) -> set[Value]:
    """Values that the graph's caller, or groups and calls except these, read from memory."""
    groups = (number for number in (*fusion.groups, *fusion.extern_calls) if number not in excluded)
    return needed_in_memory(fusion, groups)


def _write(fusion: Fusion, group: FusionGroup, call: Call, view: View, part: View) -> bool:
    """Have the group write ``view`` to ``part``, a slice of the call's result; False if it can't."""
    source = view.value
    layout = _with_dims_of(source.layout, view.layout, part.layout)
    if layout is None or source.dtype != part.value.dtype or not is_computed(group, source.maker):
        return False
    if _comes_before(fusion, group.number, call):
        return False
    index_map = index_map_of(source.layout, layout)
    operation = Map([View(source, source.layout)], "part", lambda x: x)
    value = fusion.graph.value(layout, source.dtype, source.device)
    operation.results, value.maker = [value], operation
    if not same_kind(group, [operation]):
        return False
    fusion.place_of[operation] = fusion.place_of[call]
    if is_strided(index_map):
        if not add(fusion, group, Copy([operation], operation.inputs[0], index_map)):
            return False
    elif part.layout.offset * source.dtype.itemsize % _ALIGNED:
        return False
    elif group.try_add_copies([operation], {}):  # the slice is in the group's own order
        fusion.group_of[operation] = group.number
    else:
        return False
    group.parts[value] = part
    if (memory := memory_of(part.value)) is not None:
        fusion.depend(group.number, [memory])
    return True


def _with_dims_of(source: Layout, view: Layout, part: Layout) -> Layout | None:
    """The part's strides in the order of the source's dimensions, of which the view is a permutation; None if it is
    another view."""
    if view.offset != source.offset or view.numel != source.numel:
        return None
    axes = zip(view.sizes, view.strides, part.strides, strict=True)
    stride_of = {(size, stride): of_part for size, stride, of_part in axes if size > 1}
    dims = list(zip(source.sizes, source.strides, strict=True))
    if any(dim not in stride_of for dim in dims if dim[0] > 1):
        return None
    return Layout(source.sizes, tuple(stride_of[dim] if dim[0] > 1 else 1 for dim in dims))
