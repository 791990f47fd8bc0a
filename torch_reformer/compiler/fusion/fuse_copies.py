"""Copies in another order of memory, as matrix products need them: the kernel that computes the elements writes them
there, in place of its own order or besides. What is added up of a copy's columns comes along where it can."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Map, Operation, Random, Reduce
from ..ir.iteration_space import IndexMap, inverse, is_strided
from .greedy import Fusion
from .group import FusionGroup, same_kind


@dataclass(frozen=True)
class Copy:
    """Another group's result in another order. index map: where its elements lie, as those of what is copied follow one
    another. reduces: what is reduced of it. columns: the elements of a row that stay in place."""

    operation: Map
    of: Operation
    index_map: IndexMap
    reduces: list[Reduce]
    columns: int


def fuse_copies(fusion: Fusion) -> None:
    """Has groups write other groups' copies of their results (Group.copies)."""
    for group in list(fusion.groups.values()):
        if (copy := _copy(group)) is None:
            continue
        maker = fusion.groups.get(fusion.group_of[copy.of])
        if maker is None or not is_computed(maker, copy.of) or not same_kind(maker, [copy.operation]):
            continue
        if group.reductions <= {((1, copy.columns),)} and add(fusion, maker, copy, group.operations):
            fusion.replace(group.number, maker.number)
            del fusion.groups[group.number]
        elif copy.reduces and add(fusion, maker, copy, [copy.operation]):
            group.operations = copy.reduces
            view = copy.reduces[0].input
            group.inputs = {(view.value, view.layout, group.full_map): view}
            group.operands = {group.full_map}
            group.live_results.discard(view.value)


def _copy(group: FusionGroup) -> Copy | None:
    """What the group does if it is nothing but a copy and reductions of that."""
    if group.anchor or not group.operations or group.recomputed or len(group.inputs) != 1:
        return None
    (((_, _, index_map), view),) = group.inputs.items()
    operation, *reduces = group.operations
    if not isinstance(operation, Map) or isinstance(operation, Random) or view.value.maker is None:
        return None
    if len(operation.inputs) != 1 or operation.inputs[0].value is not view.value:
        return None
    (result,) = operation.results
    if any(not isinstance(each, Reduce) or each.input.value is not result for each in reduces) or group.per_row:
        return None
    if not is_strided(index_map) or view.layout.offset or view.layout.numel != view.value.layout.numel:
        return None
    transposed = inverse(index_map)
    return None if transposed is None else Copy(operation, view.value.maker, transposed, reduces, index_map[0][1])


def is_computed(group: FusionGroup, operation: Operation) -> bool:
    """Whether the group computes an element of it for each of its own."""
    (value,) = operation.results
    if group.anchor or isinstance(operation, Reduce) or value.layout.numel != group.numel:
        return False
    if value in group.copies:  # in another order than the group's
        return False
    return any(each is operation for each in group.operations) and value.layout.is_dense


def add(fusion: Fusion, maker: FusionGroup, copy: Copy, operations: list[Operation], transposes: bool = False) -> bool:
    """Has the maker compute these, the copy among them, if it can. turns: whether the copy may be transposed."""
    reductions = [((1, copy.columns),)] if len(operations) > 1 else []
    if not maker.try_add_copies(operations, {copy.operation.results[0]: copy.index_map}, reductions, transposes):
        return False
    fusion.group_of |= dict.fromkeys(operations, maker.number)
    return True
