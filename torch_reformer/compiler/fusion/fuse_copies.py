"""Fuse copies in another memory order, as matrix products need them, into the kernels that compute the elements.

Column sums of such a copy are fused with it where one kernel can compute both."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Map, Operation, Random, Reduce
from ..ir.iteration_space import IndexMap, inverse, is_strided
from .greedy import Fusion
from .group import FusionGroup, same_kind


@dataclass(frozen=True)
class Copy:
    """Copy of another group's result in another memory order.

    Attributes:
        maker: the operation whose result is copied.
        index_map: address of each element of the copy, in the source's memory order.
        reduces: reductions of the copy.
        columns: elements of a row that stay adjacent.
    """

    operation: Map
    maker: Operation
    index_map: IndexMap
    reduces: list[Reduce]
    columns: int


def fuse_copies(fusion: Fusion) -> None:
    """Have groups write the copies that other groups make of their results (FusionGroup.copies)."""
    for group in list(fusion.groups.values()):
        if (copy := _copy(group)) is None:
            continue
        maker = fusion.groups.get(fusion.group_of[copy.maker])
        if maker is None or not is_computed(maker, copy.maker) or not same_kind(maker, [copy.operation]):
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
    """Copy that the group makes, if that and reductions of it are all it computes; else None."""
    if group.anchor or not group.operations or group.recomputed or len(group.inputs) != 1:
        return None
    (((_, _, index_map), view),) = group.inputs.items()
    operation, *reduces = group.operations
    if not isinstance(operation, Map) or isinstance(operation, Random) or view.value.maker is None:
        return None
    if len(operation.inputs) != 1 or operation.inputs[0].value is not view.value:
        return None
    (result,) = operation.results
    if group.per_row or any(not isinstance(other, Reduce) or other.input.value is not result for other in reduces):
        return None
    if not is_strided(index_map) or view.layout.offset or view.layout.numel != view.value.layout.numel:
        return None
    written = inverse(index_map)
    return None if written is None else Copy(operation, view.value.maker, written, reduces, index_map[0][1])


def is_computed(group: FusionGroup, operation: Operation) -> bool:
    """True if the operation is one of the group's own, computed element by element in the group's order."""
    (value,) = operation.results
    if group.anchor or isinstance(operation, Reduce) or value.layout.numel != group.numel:
        return False
    if value in group.copies:  # written in another order
        return False
    return any(own is operation for own in group.operations) and value.layout.is_dense


def add(fusion: Fusion, maker: FusionGroup, copy: Copy, operations: list[Operation], transposes: bool = False) -> bool:
    """Add operations, the copy among them, to the group that makes its source; False if that can't compute them.

    transposes: the copy may be transposed.
    """
    reductions = [((1, copy.columns),)] if len(operations) > 1 else []
    if not maker.try_add_copies(operations, {copy.operation.results[0]: copy.index_map}, reductions, transposes):
        return False
    fusion.group_of |= dict.fromkeys(operations, maker.number)
    return True
