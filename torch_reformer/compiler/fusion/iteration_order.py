"""Choose the order in which a group's kernel iterates over the elements of its result.

In the order of memory some operands, or copies that are written, have few adjacent elements: a pixel shuffle has two.
A kernel that goes along one tensor's adjacent elements by columns, and along another's by lines, transposes tiles in
registers: it reads and writes both by whole sectors. This comes after fusion. Copies in another order of memory that no
group computes become groups of their own, unless the copying kernel moves vectors of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..ir.access import Access
from ..ir.digits import parts_of, with_strides
from ..ir.graph import Call, Map, Reduce
from ..ir.index_maps import BY_PLACE, IndexMap, index_map_of
from ..ir.iteration_space import LONGEST_ROW, IterationSpace, fits
from ..ir.layout import Layout
from ..ir.targets import Targets
from .greedy import Fusion
from .group import FusionGroup, InputKey, has_too_many_strided, has_too_many_transposed

DEVICES = ("cuda",)  # kernels of other devices would read element by element
_contiguous = torch.ops.reformer._contiguous.default
_SECTOR = 32  # bytes that memory moves at once
_VECTOR = 16  # bytes that a thread does
_LEAST_COLUMNS, _AT_ONCE = 8, 4  # of a row; elements of a thread, at least
_MOST_RUNS = 8
_GAIN = 0.9  # time of another order at most, relative to that of memory


class _Tensor(NamedTuple):
    """A tensor that a group reads or writes: its index map, and bytes of an element and of all elements."""

    index_map: IndexMap
    itemsize: int
    bytes: int


def choose_orders(fusion: Fusion) -> None:
    """Give groups whose tensors lie apart another order of iteration, and group lone copies that need one."""
    for number, call in list(fusion.extern_calls.items()):
        if isinstance(call, Call) and call.operator is _contiguous:
            _group_copy(fusion, number, call)
    for group in fusion.groups.values():
        if may_reorder(group) and (space := best_space(group, group.space)) is not None:
            group.space = space


def _group_copy(fusion: Fusion, number: int, call: Call) -> None:
    """Make the copy a group if a kernel computes it in another order, but no vectors of it are copied as they lie."""
    (source,), (result,) = call.args, call.results
    numel = result.layout.numel
    if result.device.type not in DEVICES or result.dtype.itemsize > 4 or type(numel) is not int or not numel:
        return
    index_map = index_map_of(result.layout, source.layout)
    if _is_copied_by_vectors(result.layout, source.layout, result.dtype.itemsize):
        return
    copy = Map([source], "clone", lambda x: x)
    copy.results = [result]
    plain = IterationSpace(1, 1, numel, 1, False)
    group = FusionGroup(number, plain, operations=[copy], operands={index_map}, live_results={result})
    group.inputs = {(source.value, source.layout, index_map): source}
    if not may_reorder(group) or (space := best_space(group, None)) is None:
        return
    group.space = space
    fusion.groups[number] = group
    fusion.place_of[copy], fusion.group_of[copy] = fusion.place_of[call], number
    del fusion.extern_calls[number]


def _is_copied_by_vectors(result: Layout, source: Layout, itemsize: int) -> bool:
    """True if the copying kernel (csrc/hip/copy/transpose.cpp) moves vectors of both."""
    digits = with_strides(index_map_of(result, source), result.numel)
    count = _VECTOR // itemsize
    lines, columns = digits[0], next((digit for digit in digits if digit[2] == 1), None)
    if columns in (None, lines) or source.offset % count:
        return False
    others = [number for digit in digits if digit not in (lines, columns) for number in (digit[0], digit[2])]
    return not any(number % count for number in (lines[1], lines[2], columns[0], columns[1], *others))


def may_reorder(group: FusionGroup) -> bool:
    """True if the group computes elements of one size only, and needs no rows, channels, planes or places of them."""
    if group.space is None or group.anchor or group.reductions or group.per_row or group.gathers or group.destinations:
        return False
    if any(isinstance(index_map, Targets) for index_map in group.copies.values()):
        return False
    numel, computed = group.numel, group.computed
    if type(numel) is not int or not numel or group.members[0].results[0].device.type not in DEVICES:
        return False
    if any(isinstance(operation, Reduce) or operation.results[0].layout.numel != numel for operation in computed):
        return False
    if any(value.memory for value in group.makes) or any(index_map == BY_PLACE for *_, index_map in group.inputs):
        return False
    return all(value.dtype.itemsize <= 4 for value in {*group.makes, *group.reads})


def tensors_of(group: FusionGroup) -> list[_Tensor]:
    """The tensors that a group reads and writes."""
    found = []
    for (value, _, index_map), view in group.inputs.items():
        elements = index_map.elements if isinstance(index_map, Access) else view.elements
        found.append(_Tensor(index_map, value.dtype.itemsize, elements * value.dtype.itemsize))
    for value in sorted(group.live_results, key=lambda value: value.number):
        index_map = group.copies.get(value, group.full_map)
        found.append(_Tensor(index_map, value.dtype.itemsize, value.bytes))
    return found


def best_space(group: FusionGroup, space: IterationSpace | None) -> IterationSpace | None:
    """The space in whose order the group moves the fewest sectors; None if that is `space`."""
    tensors = tensors_of(group)
    least = math.inf if space is None else _GAIN * cost_of(space, tensors)
    best = None
    if space is not None and cost_of(space, tensors) <= sum(tensor.bytes for tensor in tensors):
        return None
    operands = {tensor.index_map for tensor in tensors} | {group.full_map}
    for candidate in _candidates(group.numel, tensors):
        if not fits(candidate, operands, (), transposes=True):
            continue
        keys: list[InputKey] = list(group.inputs)
        written = [group.copies.get(value, group.full_map) for value in group.live_results]
        if has_too_many_strided(candidate, keys, written) or has_too_many_transposed(candidate, keys, written):
            continue
        if (cost := cost_of(candidate, tensors)) < least:
            best, least = candidate, cost
    return best


def cost_of(space: IterationSpace, tensors: list[_Tensor]) -> float:
    """Bytes of the sectors that a kernel moves, times how much longer it takes if threads have few elements."""
    at_once, total = math.gcd(_AT_ONCE, space.channels if space.nhwc else space.pixels), 0.0
    for tensor in tensors:
        columns, adjacent = space.adjacent(tensor.index_map) or (0, _SECTOR)
        at_once = math.gcd(at_once, columns)
        total += tensor.bytes * max(1.0, _SECTOR / (adjacent * tensor.itemsize))
    return total * _AT_ONCE / at_once


def _candidates(numel: int, tensors: list[_Tensor]) -> Iterator[IterationSpace]:
    """Spaces whose columns are adjacent in one of the tensors, and whose first lines are in another one."""
    runs = _common_runs(numel, tensors)
    if runs is None or len(runs) > _MOST_RUNS:
        return
    strides = list(dict.fromkeys(_strides(tensor.index_map, runs, numel) for tensor in tensors))
    seen = set()
    for along, down in itertools.product(strides, strides):
        columns: list[int] = []
        while (i := next((i for i in range(len(runs)) if along[i] == _count(runs, columns)), None)) is not None:
            columns.append(i)
            channels = _count(runs, columns)
            if channels > LONGEST_ROW or i in columns[:-1]:
                break
            rest = [i for i in range(len(runs)) if i not in columns]
            lines = sorted(rest, key=lambda i: (down[i] == 0, down[i]))
            order = tuple(runs[i] for i in (*columns, *lines))
            if channels >= _LEAST_COLUMNS and order not in seen and lines:
                seen.add((order, channels))
                yield IterationSpace(1, channels, numel // channels, 1, True, order=order)


def _count(runs: list[tuple[int, int]], of: list[int]) -> int:
    return math.prod(runs[i][1] for i in of)


def _common_runs(numel: int, tensors: list[_Tensor]) -> list[tuple[int, int]] | None:
    """Distances and numbers of the elements of runs that are whole parts of digits of all index maps, innermost first;
    None if there are none."""
    ends = {1, numel}
    for tensor in tensors:
        access = tensor.index_map if isinstance(tensor.index_map, Access) else None
        for digits in (access.digits, *(term.digits for term in access.terms)) if access else (tensor.index_map,):
            ends |= {end for inner, count, _ in with_strides(digits, numel) for end in (inner, inner * count)}
    inner = sorted(ends)
    if any(end % start for start, end in itertools.pairwise(inner)):
        return None
    return [(start, end // start) for start, end in itertools.pairwise(inner)]


def _strides(index_map: IndexMap, runs: list[tuple[int, int]], numel: int) -> tuple[int, ...]:
    """The distance of the elements of each run in a tensor; along axes with maps, without them."""
    if not isinstance(index_map, Access):
        return _strides_of(with_strides(index_map, numel), runs)
    strides = _strides_of(index_map.digits, runs)
    for term in index_map.terms:
        of_term = _strides_of(with_strides(term.digits, numel), runs)
        strides = tuple(one + term.stride * other for one, other in zip(strides, of_term, strict=True))
    return strides


def _strides_of(digits, runs: list[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(sum(stride for _, stride in parts_of(digits, *run) or ()) for run in runs)
