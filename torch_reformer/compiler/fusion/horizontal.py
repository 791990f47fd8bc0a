"""Horizontal fusion: merge groups that make or read the same tensors, so that these are read once or not at all.

Greedy fusion adds one operation at a time, so an operation that reads the results of two groups is in only one of
them. Groups of few elements are merged even if they share nothing: a launch takes longer than they do."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from ...runtime.sizes import about_cost
from ..ir.concats import concatenated, is_concat
from ..ir.graph import Reduce, Value
from ..ir.iteration_space import IterationSpace, find_space, fits
from ..ir.kernel_limits import LITTLE, MOST_INPUTS, MOST_OPERATIONS, MOST_OUTPUTS
from .greedy import Fusion
from .group import FusionGroup, has_too_many_strided, may_follow, same_kind

_MOST_READERS = 8  # of one tensor, considered in pairs


def fuse_horizontally(fusion: Fusion) -> bool:
    """Merge pairs of groups, those that share the most bytes first, until none can be; True if a pair was merged."""
    any_merged = False
    while pairs := _pairs(fusion):
        merged: set[int] = set()
        for first, second in pairs:
            if first in merged or second in merged:
                continue
            groups = fusion.groups[first], fusion.groups[second]
            if (space := _space(fusion, *groups)) is not None:
                _merge(fusion, *groups, space)
                merged |= {first, second}
        if not merged:
            break
        any_merged = True
    return any_merged


@about_cost()
def _pairs(fusion: Fusion) -> list[tuple[int, int]]:
    """Pairs of groups that make or read the same tensor, element by element or in parts, make parts of one
    concatenation, or have equally few elements; those that share the most bytes come first."""
    users: dict[Value, list[int]] = {}
    for number, group in fusion.groups.items():
        makes = group.makes
        read = [*(view.value for view in group.full_inputs()), *_inputs_in_parts(group)]
        values = {value: None for value in read if value not in makes}
        values |= {operation.results[0]: None for operation in group.members if not isinstance(operation, Reduce)}
        for value in values:
            users.setdefault(value, []).append(number)
    shared: dict[tuple[int, int], int] = {}
    for value, numbers in users.items():
        maker = fusion.group_that_makes(value) if value.maker is not None and len(numbers) > 1 else None
        for pair in itertools.combinations(sorted(numbers[:_MOST_READERS]), 2):
            shared[pair] = shared.get(pair, 0) + value.bytes * (2 if maker in pair else 1)
    for call in filter(is_concat, fusion.extern_calls.values()):
        makers = {fusion.group_that_makes(view.value) for view in concatenated(call)} & fusion.groups.keys()
        for pair in itertools.combinations(sorted(makers), 2):
            shared.setdefault(pair, 0)
    by_size: dict[int, list[int]] = {}
    for number, group in fusion.groups.items():
        if not group.anchor and group.numel <= LITTLE:
            by_size.setdefault(group.numel, []).append(number)
    for numbers in by_size.values():
        for place, number in enumerate(numbers):
            for other in numbers[place + 1 : place + _MOST_READERS]:
                shared.setdefault((min(number, other), max(number, other)), 0)
    return sorted(shared, key=lambda pair: (-shared[pair], pair))


def _inputs_in_parts(group: FusionGroup) -> Iterator[Value]:
    """Tensors of at least as many elements as the group has, all of which it reads in several views."""
    elements: Counter[Value] = Counter()
    for view in group.inputs.values():
        elements[view.value] += view.elements
    return (value for value, count in elements.items() if count >= value.layout.numel >= group.numel)


def _space(fusion: Fusion, first: FusionGroup, second: FusionGroup) -> IterationSpace | None:
    """Iteration space of the two groups as one; None if they can't be merged."""
    if not same_kind(first, second.members) or len(first.live_results | second.live_results) > MOST_OUTPUTS:
        return None
    return None if _depend(fusion, first, second) else common_space(first, second)


def common_space(first: FusionGroup, second: FusionGroup) -> IterationSpace | None:
    """Iteration space in which one kernel computes both groups; None if their operands or reductions rule it out."""
    if first.numel != second.numel or (first.anchor and second.anchor):
        return None
    if len(first.computed) + len(second.computed) > MOST_OPERATIONS:
        return None
    made = first.makes | second.makes
    if sum(key[0] not in made for key in first.inputs | second.inputs) > MOST_INPUTS:
        return None
    operands, reductions = first.operands | second.operands, first.reductions | second.reductions
    if anchored := first if first.anchor else second if second.anchor else None:
        if not may_follow(
            anchored.anchor, [*first.recomputed, *first.operations, *second.recomputed, *second.operations]
        ):
            return None
        has_rows = first.per_row or second.per_row
        return anchored.space if not has_rows and fits(anchored.space, operands, reductions, False) else None
    space = find_space(first.numel, operands, reductions)
    if space is None or not (first.supports(space) and second.supports(space)):
        return None
    copies = [*first.copies.values(), *second.copies.values()]
    return None if has_too_many_strided(space, first.inputs | second.inputs, copies) else space


def _depend(fusion: Fusion, first: FusionGroup, second: FusionGroup) -> bool:
    """True if one needs the other's completed result, as of a reduction, or needs it through a third group."""
    for one, other in ((first, second), (second, first)):
        if not fusion.needs[other.number] >> one.number & 1:
            continue
        if needs_all_of(other, one):
            return True
        before = fusion.needs[other.number] & ~(1 << one.number)
        while before:
            third = before.bit_length() - 1
            if fusion.needs[third] >> one.number & 1:
                return True
            before &= ~(1 << third)
    return False


def needs_all_of(group: FusionGroup, other: FusionGroup) -> bool:
    """True if the group reads a result of ``other`` that is complete only after ``other``'s kernel."""
    makes = other.makes
    for (value, _, index_map), view in group.inputs.items():
        if value in makes and (not other.knows(view, index_map) or (index_map == other.full_map and not view.is_full)):
            return True
    return group.anchor is not None and any(view.value in makes for view in group.anchor.operands)


def _merge(fusion: Fusion, first: FusionGroup, second: FusionGroup, space: IterationSpace) -> None:
    if second.anchor:
        first, second = second, first
    first.absorb(second, space, fusion.place_of)
    for operation in second.operations:
        fusion.group_of[operation] = first.number
    fusion.replace(second.number, first.number)
    del fusion.groups[second.number]
