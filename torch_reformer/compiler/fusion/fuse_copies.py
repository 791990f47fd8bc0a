"""Copies in another order of memory, as matrix products need them: the kernel that computes the elements writes them
there, in place of its own order or besides. What is added up of a copy's columns comes along where it can."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Map, Operation, Random, Reduce
from ..ir.iteration_space import Digits, find_space, inverse, is_placed
from ..ir.kernel_limits import MOST_OPERATIONS, MOST_OUTPUTS
from .greedy import Grouping
from .group import Region, are_many_placed, are_many_turned, same_kind


@dataclass(frozen=True)
class Copy:
    """Another region's result in another order. digits: where its elements lie, as those of what is copied follow one
    another. reduces: what is reduced of it. columns: the elements of a row that stay in place."""

    operation: Map
    of: Operation
    digits: Digits
    reduces: list[Reduce]
    columns: int


def write_copies(grouping: Grouping) -> None:
    """Has regions write other regions' copies of their results (Region.copies)."""
    for region in list(grouping.regions.values()):
        if (copy := _copy(region)) is None:
            continue
        maker = grouping.regions.get(grouping.group_of[copy.of])
        if maker is None or not is_computed(maker, copy.of) or not same_kind(maker, [copy.operation]):
            continue
        if region.reductions <= {((1, copy.columns),)} and add(grouping, maker, copy, region.operations):
            grouping.replace(region.number, maker.number)
            del grouping.regions[region.number]
        elif copy.reduces and add(grouping, maker, copy, [copy.operation]):
            region.operations = copy.reduces
            view = copy.reduces[0].input
            region.leaves = {(view.value, view.layout, region.whole): view}
            region.operands = {region.whole}
            region.open_results.discard(view.value)


def _copy(region: Region) -> Copy | None:
    """What the region does if it is nothing but a copy and reductions of that."""
    if region.anchor or not region.operations or region.recomputed or len(region.leaves) != 1:
        return None
    (((_, _, digits), view),) = region.leaves.items()
    operation, *reduces = region.operations
    if not isinstance(operation, Map) or isinstance(operation, Random) or view.value.maker is None:
        return None
    if len(operation.inputs) != 1 or operation.inputs[0].value is not view.value:
        return None
    (result,) = operation.results
    if any(not isinstance(each, Reduce) or each.input.value is not result for each in reduces) or region.of_rows:
        return None
    if not is_placed(digits) or view.layout.offset or view.layout.numel != view.value.layout.numel:
        return None
    turned = inverse(digits)
    return None if turned is None else Copy(operation, view.value.maker, turned, reduces, digits[0][1])


def is_computed(region: Region, operation: Operation) -> bool:
    """Whether the region computes an element of it for each of its own."""
    (value,) = operation.results
    if region.anchor or isinstance(operation, Reduce) or value.layout.numel != region.numel:
        return False
    if value in region.copies:  # in another order than the region's
        return False
    return any(each is operation for each in region.operations) and value.layout.is_dense


def add(grouping: Grouping, maker: Region, copy: Copy, operations: list[Operation], turns: bool = False) -> bool:
    """Has the maker compute these, the copy among them, if it can. turns: whether the copy may be turned."""
    placed = {*maker.copies.values(), copy.digits}
    reductions = maker.reductions | ({((1, copy.columns),)} if len(operations) > 1 else set())
    space = find_space(maker.numel, maker.operands | placed, reductions, turns)
    if space is None or not all(map(space.is_placed, placed)):
        return False
    if not maker.takes(space) or are_many_placed(space, maker.leaves, len(maker.copies) + 1):
        return False
    if are_many_turned(space, maker.leaves, [*maker.copies.values(), copy.digits]):
        return False
    if len(maker.open_results) + len(operations) > MOST_OUTPUTS:
        return False
    if len(maker.computed) + len(operations) > MOST_OPERATIONS:
        return False
    maker.space, maker.reductions = space, reductions
    maker.operations += operations
    maker.copies[copy.operation.results[0]] = copy.digits
    for operation in operations:
        maker.open_results.add(operation.results[0])
        grouping.group_of[operation] = maker.number
    return True
