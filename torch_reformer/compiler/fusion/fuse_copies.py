"""Fuse copies in another memory order, as matrix products need them, into the kernels that compute the elements.

A copy may be read through maps of axes, as rolled windows are: then the kernel stores each row where the copy has it
(ir/targets.py). Element-wise operations on the copy, as a cast, are fused with it, and so are its column sums where one
kernel can compute both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.access import Access
from ..ir.graph import Indexed, Map, Operation, Random, Reduce, View, is_cast
from ..ir.iteration_space import IndexMap, inverse, is_strided, without
from ..ir.targets import targets_of
from .greedy import Fusion
from .group import FusionGroup, same_kind

_COPIES = {"clone", "copy"}


@dataclass(frozen=True)
class Copy:
    """Copy of another group's result in another memory order.

    Attributes:
        operations: the copy, and element-wise operations on it, each on the result of the one before.
        source: the view that is copied.
        index_map: address of each element of the copy, in the source's memory order.
        reduces: reductions of the results.
        reductions: index maps of these.
    """

    operations: Sequence[Map]
    source: View
    index_map: IndexMap
    reduces: Sequence[Reduce] = ()
    reductions: frozenset[IndexMap] = frozenset()

    @property
    def maker(self) -> Operation:
        """The operation whose result is copied."""
        return self.source.value.maker


def fuse_copies(fusion: Fusion) -> None:
    """Have groups write the copies that other groups make of their results (FusionGroup.copies)."""
    for group in list(fusion.groups.values()):
        if (copy := _copy(group)) is None:
            continue
        maker = fusion.groups.get(fusion.group_of.get(copy.maker, -1))
        if maker is None or not is_computed(maker, copy.maker) or not same_kind(maker, copy.operations):
            continue
        if group.reductions <= copy.reductions and add(fusion, maker, copy, with_reduces=True):
            fusion.replace(group.number, maker.number)
            del fusion.groups[group.number]
        elif copy.reduces and add(fusion, maker, copy):
            group.operations = [*copy.reduces]
            views = [operation.input for operation in copy.reduces]
            group.inputs = {(view.value, view.layout, group.full_map): view for view in views}
            group.operands = {group.full_map}
            group.live_results -= {operation.results[0] for operation in copy.operations}


def _copy(group: FusionGroup) -> Copy | None:
    """Copy that the group makes, if that, element-wise operations on it and reductions are all it computes; else
    None."""
    makes = group.makes
    inputs = [(key[2], view) for key, view in group.inputs.items() if view.value not in makes]
    if group.anchor or group.recomputed or group.per_row or group.copies or len(inputs) != 1:
        return None
    ((index_map, source),) = inputs
    operations = [operation for operation in group.operations if isinstance(operation, Map)]
    reduces = [operation for operation in group.operations if isinstance(operation, Reduce)]
    if source.value.maker is None or not _are_chain(operations, source, index_map):
        return None
    results = [operation.results[0] for operation in operations]
    if any(not view.is_full or view.value not in results for view in (operation.input for operation in reduces)):
        return None
    numel = results[0].layout.numel
    if isinstance(index_map, Access):
        whole = not source.layout.offset and source.layout.numel == source.value.layout.numel
        written = targets_of(index_map, source.value.layout.numel, numel) if whole else None
        if written is None or (reduces and not written.are_bijective):
            return None
        if written.have_zeros and not all(map(_keeps_zeros, operations)):
            return None
        columns = written.digits[0][1]
    else:
        if not is_strided(index_map) or source.layout.offset or source.layout.numel != source.value.layout.numel:
            return None
        if (written := inverse(index_map)) is None:
            return None
        columns = index_map[0][1]
    reductions = frozenset(_of_columns(operation, columns) for operation in reduces) - {None}
    return Copy(operations, source, written, reduces, reductions)


def _are_chain(operations: list[Map], source: View, index_map: IndexMap) -> bool:
    """True if the first operation reads only the source, and each other one only the result before it, in order."""
    if not operations or any(isinstance(operation, Random) or len(operation.inputs) != 1 for operation in operations):
        return False
    view = operations[0].inputs[0]
    while isinstance(index_map, Access) and isinstance(view.value.maker, Indexed) and view.value is not source.value:
        (view,) = view.value.maker.inputs
    if view.value is not source.value:
        return False
    for before, operation in zip(operations, operations[1:], strict=False):
        (result,), (view,), layout = before.results, operation.inputs, operation.results[0].layout
        if view.value is not result or not view.is_full or not view.layout.matches(layout):
            return False
    return all(operation.results[0].layout.is_dense for operation in operations)


def _keeps_zeros(operation: Map) -> bool:
    return isinstance(operation, Indexed) or operation.name in _COPIES or is_cast(operation)


def _of_columns(operation: Reduce, columns: int) -> IndexMap | None:
    """Index map of a reduction to columns that stay adjacent, so many, in the copy; None of others."""
    index_map = without(operation.input.layout, operation.over)
    if len(index_map) != 1 or index_map[0][0] != 1 or columns % index_map[0][1]:
        return None
    return index_map


def is_computed(group: FusionGroup, operation: Operation) -> bool:
    """True if the operation is one of the group's own, computed element by element in the group's order."""
    (value,) = operation.results
    if group.anchor or isinstance(operation, Reduce) or value.layout.numel != group.numel:
        return False
    if value in group.copies:  # written in another order
        return False
    return any(own is operation for own in group.operations) and value.layout.is_dense


def add(fusion: Fusion, maker: FusionGroup, copy: Copy, with_reduces: bool = False, transposes: bool = False) -> bool:
    """Add the copy to the group that makes its source; False if that can't compute it.

    Args:
        with_reduces: also add reductions of it.
        transposes: the copy may be transposed.
    """
    operations = [*copy.operations, *(copy.reduces if with_reduces else ())]
    copies = {operation.results[0]: copy.index_map for operation in copy.operations}
    sources = {copy.operations[0].results[0]: View(copy.source.value, copy.source.value.layout)}
    reductions = copy.reductions if with_reduces else ()
    if not maker.try_add_copies(operations, copies, reductions, transposes, sources):
        return False
    fusion.group_of |= dict.fromkeys(operations, maker.number)
    return True
