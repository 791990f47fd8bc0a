"""Groups that share tensors become one where they can: what the first then makes, the second needs not read, and what
both read is read once. Groups grow operation by operation (fusion/group.py), so an operation that needs two of them has
joined only one. Groups of few elements become one though they share nothing: a launch takes longer than they."""

from __future__ import annotations

import itertools

from ..ir.graph import Reduce, Value
from ..ir.iteration_space import IterationSpace, find_space, fits
from ..ir.kernel_limits import LITTLE, MOST_INPUTS, MOST_OPERATIONS, MOST_OUTPUTS
from .greedy import Fusion
from .group import FusionGroup, has_too_many_strided, same_kind

_MOST_READERS = 8  # of one tensor that are looked at, in pairs


def fuse_horizontally(fusion: Fusion) -> bool:
    """Joins the pairs that share the most bytes first, as long as there are such; says whether there was one."""
    any_joined = False
    while pairs := _pairs(fusion):
        joined: set[int] = set()
        for first, second in pairs:
            if first in joined or second in joined:
                continue
            groups = fusion.groups[first], fusion.groups[second]
            if (space := _space(fusion, *groups)) is not None:
                _join(fusion, *groups, space)
                joined |= {first, second}
        if not joined:
            break
        any_joined = True
    return any_joined


def _pairs(fusion: Fusion) -> list[tuple[int, int]]:
    """Groups that make or read the same tensor as a whole, or are of as few elements, those with the most bytes in
    common first."""
    users: dict[Value, list[int]] = {}
    for number, group in fusion.groups.items():
        makes = group.makes
        values = {view.value: None for view in group.full_inputs() if view.value not in makes}
        values |= {each.results[0]: None for each in group.members if not isinstance(each, Reduce)}
        for value in values:
            users.setdefault(value, []).append(number)
    shared: dict[tuple[int, int], int] = {}
    for value, numbers in users.items():
        maker = fusion.group_that_makes(value) if value.maker is not None and len(numbers) > 1 else None
        for pair in itertools.combinations(sorted(numbers[:_MOST_READERS]), 2):
            shared[pair] = shared.get(pair, 0) + value.bytes * (2 if maker in pair else 1)
    of_sizes: dict[int, list[int]] = {}
    for number, group in fusion.groups.items():
        if not group.anchor and group.numel <= LITTLE:
            of_sizes.setdefault(group.numel, []).append(number)
    for numbers in of_sizes.values():
        for place, number in enumerate(numbers):
            for other in numbers[place + 1 : place + _MOST_READERS]:
                shared.setdefault((min(number, other), max(number, other)), 0)
    return sorted(shared, key=lambda pair: (-shared[pair], pair))


def _space(fusion: Fusion, first: FusionGroup, second: FusionGroup) -> IterationSpace | None:
    """That of the two as one; None if they can't be."""
    if not same_kind(first, second.members) or len(first.live_results | second.live_results) > MOST_OUTPUTS:
        return None
    return None if _depend(fusion, first, second) else common_space(first, second)


def common_space(first: FusionGroup, second: FusionGroup) -> IterationSpace | None:
    """One in which a kernel computes what both do, as far as that hangs on operands and reductions."""
    if first.numel != second.numel or (first.anchor and second.anchor):
        return None
    if len(first.computed) + len(second.computed) > MOST_OPERATIONS:
        return None
    made = first.makes | second.makes
    if sum(key[0] not in made for key in first.inputs | second.inputs) > MOST_INPUTS:
        return None
    operands, reductions = first.operands | second.operands, first.reductions | second.reductions
    if anchored := first if first.anchor else second if second.anchor else None:
        is_free = not (first.per_row or second.per_row) and fits(anchored.space, operands, reductions, False)
        return anchored.space if is_free else None
    space = find_space(first.numel, operands, reductions)
    if space is None or not (first.supports(space) and second.supports(space)):
        return None
    copies = len(first.copies) + len(second.copies)
    return None if has_too_many_strided(space, first.inputs | second.inputs, copies) else space


def _depend(fusion: Fusion, first: FusionGroup, second: FusionGroup) -> bool:
    """Whether one needs the other in another way than element by element: what it reduces, or by way of a third."""
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
    """Whether it reads what the other makes in another way than element by element."""
    makes = other.makes
    for (value, _, index_map), view in group.inputs.items():
        if value in makes and (not other.knows(view, index_map) or (index_map == other.full_map and not view.is_full)):
            return True
    return group.anchor is not None and any(view.value in makes for view in group.anchor.operands)


def _join(fusion: Fusion, first: FusionGroup, second: FusionGroup, space: IterationSpace) -> None:
    if second.anchor:
        first, second = second, first
    first.absorb(second, space, fusion.place_of)
    for operation in second.operations:
        fusion.group_of[operation] = first.number
    fusion.replace(second.number, first.number)
    del fusion.groups[second.number]
