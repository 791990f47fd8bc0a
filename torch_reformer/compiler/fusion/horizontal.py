"""Regions that share tensors become one where they can: what the first then makes, the second needs not read, and what
both read is read once. Regions grow operation by operation (fusion/group.py), so an operation that needs two of them has
joined only one. Regions of few elements become one though they share nothing: a launch takes longer than they."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..ir.graph import Operation, Reduce, Value
from ..ir.iteration_space import Space, find_space, fits
from ..ir.kernel_limits import LITTLE, MOST_INPUTS, MOST_OPERATIONS, MOST_OUTPUTS
from .greedy import Grouping
from .group import Region, are_many_placed, same_kind

_MOST_READERS = 8  # of one tensor that are looked at, in pairs


def merge(grouping: Grouping) -> bool:
    """Joins the pairs that share the most bytes first, as long as there are such; says whether there was one."""
    any_joined = False
    while pairs := _pairs(grouping):
        joined: set[int] = set()
        for first, second in pairs:
            if first in joined or second in joined:
                continue
            regions = grouping.regions[first], grouping.regions[second]
            if (space := _space(grouping, *regions)) is not None:
                _join(grouping, *regions, space)
                joined |= {first, second}
        if not joined:
            break
        any_joined = True
    return any_joined


def _pairs(grouping: Grouping) -> list[tuple[int, int]]:
    """Regions that make or read the same tensor as a whole, or are of as few elements, those with the most bytes in
    common first."""
    users: dict[Value, list[int]] = {}
    for number, region in grouping.regions.items():
        makes = region.makes
        values = {view.value: None for view in region.whole_leaves() if view.value not in makes}
        values |= {each.results[0]: None for each in region.members if not isinstance(each, Reduce)}
        for value in values:
            users.setdefault(value, []).append(number)
    shared: dict[tuple[int, int], int] = {}
    for value, numbers in users.items():
        maker = grouping.group_that_makes(value) if value.maker is not None and len(numbers) > 1 else None
        for pair in itertools.combinations(sorted(numbers[:_MOST_READERS]), 2):
            shared[pair] = shared.get(pair, 0) + value.bytes * (2 if maker in pair else 1)
    of_sizes: dict[int, list[int]] = {}
    for number, region in grouping.regions.items():
        if not region.anchor and region.numel <= LITTLE:
            of_sizes.setdefault(region.numel, []).append(number)
    for numbers in of_sizes.values():
        for place, number in enumerate(numbers):
            for other in numbers[place + 1 : place + _MOST_READERS]:
                shared.setdefault((min(number, other), max(number, other)), 0)
    return sorted(shared, key=lambda pair: (-shared[pair], pair))


def _space(grouping: Grouping, first: Region, second: Region) -> Space | None:
    """That of the two as one; None if they can't be."""
    if not same_kind(first, second.members) or len(first.open_results | second.open_results) > MOST_OUTPUTS:
        return None
    return None if _depend(grouping, first, second) else common_space(first, second)


def common_space(first: Region, second: Region) -> Space | None:
    """One in which a kernel computes what both do, as far as that hangs on operands and reductions."""
    if first.numel != second.numel or (first.anchor and second.anchor):
        return None
    if len(first.computed) + len(second.computed) > MOST_OPERATIONS:
        return None
    made = first.makes | second.makes
    if sum(key[0] not in made for key in first.leaves | second.leaves) > MOST_INPUTS:
        return None
    operands, reductions = first.operands | second.operands, first.reductions | second.reductions
    if anchored := first if first.anchor else second if second.anchor else None:
        is_free = not (first.of_rows or second.of_rows) and fits(anchored.space, operands, reductions, False)
        return anchored.space if is_free else None
    space = find_space(first.numel, operands, reductions)
    if space is None or not (first.takes(space) and second.takes(space)):
        return None
    copies = len(first.copies) + len(second.copies)
    return None if are_many_placed(space, first.leaves | second.leaves, copies) else space


def _depend(grouping: Grouping, first: Region, second: Region) -> bool:
    """Whether one needs the other in another way than element by element: what it reduces, or by way of a third."""
    for one, other in ((first, second), (second, first)):
        if not grouping.needs[other.number] >> one.number & 1:
            continue
        if needs_all_of(other, one):
            return True
        before = grouping.needs[other.number] & ~(1 << one.number)
        while before:
            third = before.bit_length() - 1
            if grouping.needs[third] >> one.number & 1:
                return True
            before &= ~(1 << third)
    return False


def needs_all_of(region: Region, other: Region) -> bool:
    """Whether it reads what the other makes in another way than element by element."""
    makes = other.makes
    for (value, _, digits), view in region.leaves.items():
        if value in makes and (not other.knows(view, digits) or (digits == other.whole and not view.is_whole)):
            return True
    return region.anchor is not None and any(view.value in makes for view in region.anchor.operands)


def _join(grouping: Grouping, first: Region, second: Region, space: Space) -> None:
    if second.anchor:
        first, second = second, first
    first.space = space
    join_parts(first, second, grouping.place_of)
    for operation in second.operations:
        grouping.group_of[operation] = first.number
    grouping.replace(second.number, first.number)
    del grouping.regions[second.number]


def join_parts(first: Region, second: Region, place_of: dict[Operation, int]) -> None:
    """Has the first do what the second does, besides."""

    def ordered(operations: Iterable[Operation]) -> list[Operation]:
        return sorted(set(operations), key=lambda each: place_of[each])

    first.operations = ordered([*first.operations, *second.operations])
    members = {each for each in first.operations}
    first.recomputed = ordered(each for each in (*first.recomputed, *second.recomputed) if each not in members)
    first.leaves |= second.leaves
    first.operands |= second.operands
    first.copies |= second.copies
    first.reductions |= second.reductions
    first.open_results |= second.open_results
    first.of_rows |= second.of_rows
