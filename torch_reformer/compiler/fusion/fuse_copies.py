"""Fuse copies in another memory order, as matrix products need them, into the kernels that compute the elements.

A copy may be read through maps of axes, as rolled windows are: then the kernel stores each row where the copy has it
(ir/targets.py). Element-wise operations on the copy, as a cast, are fused with it, and so are its column sums where one
kernel can compute both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.access import Access
from ..ir.graph import Indexed, Map, Operation, Random, Reduce, Value, View, is_cast
from ..ir.index_maps import IndexMap, inverse, without
from ..ir.scan import Scan
from ..ir.targets import targets_of
from .greedy import Fusion
from .group import FusionGroup, same_kind
from .inlining import inlined

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
        copies = _copies(group)
        makers = {fusion.group_of.get(copy.maker, -1) for copy in copies}
        maker = fusion.groups.get(makers.pop()) if len(makers) == 1 else None
        if maker is None:
            continue
        moved: list[Operation] = []
        for copy in copies:
            if is_computed(maker, copy.maker) and same_kind(maker, copy.operations):
                moved += add(fusion, maker, copy, with_reduces=True) or add(fusion, maker, copy)
        if len(moved) == len(group.operations):
            fusion.replace(group.number, maker.number)
            del fusion.groups[group.number]
        elif moved:
            _keep_only(group, [operation for operation in group.operations if operation not in moved])


def _keep_only(group: FusionGroup, operations: list[Operation]) -> None:
    """Leave only these operations to the group, which may reduce copies that another group now writes."""
    group.live_results -= {operation.results[0] for operation in group.operations if operation not in operations}
    group.operations = operations
    views = [operation.input for operation in operations if isinstance(operation, Reduce)]
    group.inputs |= {(view.value, view.layout, group.full_map): view for view in views}
    group.keep_only(operations)


def _copies(group: FusionGroup) -> list[Copy]:
    """Copies that the group makes, if these, element-wise operations on them and reductions are all it computes."""
    if group.anchor or group.recomputed or group.per_row or group.copies:
        return []
    chains: list[tuple[View, IndexMap, list[Map], list[Reduce]]] = []
    chain_of: dict[Value, int] = {}
    for operation in group.operations:
        view = operation.operands[0] if operation.operands else None
        if view is not None and view.value in chain_of and _continues(operation, view):
            number = chain_of[view.value]
        elif isinstance(operation, Map) and (read := _source(group, operation)) is not None:
            number = len(chains)
            chains.append((*read, [], []))
        else:
            return []
        if isinstance(operation, Reduce):
            chains[number][3].append(operation)
        else:
            chains[number][2].append(operation)
            chain_of[operation.results[0]] = number
    copies = [_copy(*chain) for chain in chains]
    return [] if None in copies else copies


def _continues(operation: Operation, view: View) -> bool:
    """True if the operation reads only the view, which is a copy, in the copy's own order."""
    if len(operation.operands) != 1 or isinstance(operation, (Random, Scan)) or not view.is_full:
        return False
    return isinstance(operation, Reduce) or view.layout.matches(operation.results[0].layout)


def _source(group: FusionGroup, operation: Map) -> tuple[View, IndexMap] | None:
    """The only view that the group reads for an operation, and its index map; None if there are several, or if more
    than maps of axes lie in between."""
    operands = group.operand_maps(operation)
    while operands is not None and len(operands) == 1 and not isinstance(operation, Random):
        ((view, index_map),) = operands
        if (key := group.input_key(view, index_map)) in group.inputs:
            return group.inputs[key], index_map
        operands = inlined(view, index_map, group.full_map) if isinstance(view.value.maker, Indexed) else None
    return None


def _copy(source: View, index_map: IndexMap, operations: list[Map], reduces: list[Reduce]) -> Copy | None:
    """The copy of a source that is read by this index map; None if no kernel that computes the source writes it."""
    whole, results = source.value.layout.numel, [operation.results[0] for operation in operations]
    if source.value.maker is None or source.layout.offset or source.layout.numel != whole:
        return None
    if not all(result.layout.is_dense for result in results):
        return None
    if isinstance(index_map, Access):
        targets = targets_of(index_map, whole, results[0].layout.numel)
        if targets is None or (targets.have_zeros and not all(map(_keeps_zeros, operations))):
            return None
        columns = targets.digits[0][1] if targets.are_bijective else 0
        written: IndexMap = targets
    else:
        if (inverted := inverse(index_map)) is None:
            return None
        columns, written = index_map[0][1], inverted
    reductions = {_of_columns(operation, columns) for operation in reduces}
    if None in reductions:
        return Copy(operations, source, written)
    return Copy(operations, source, written, reduces, frozenset(reductions))


def _keeps_zeros(operation: Map) -> bool:
    return isinstance(operation, Indexed) or operation.name in _COPIES or is_cast(operation)


def _of_columns(operation: Reduce, columns: int) -> IndexMap | None:
    """Index map of a reduction to columns, if as many stay adjacent in the copy; else None."""
    index_map = without(operation.input.layout, operation.over)
    if not columns or len(index_map) != 1 or index_map[0][0] != 1 or columns % index_map[0][1]:
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


def add(
    fusion: Fusion, maker: FusionGroup, copy: Copy, with_reduces: bool = False, transposes: bool = False
) -> list[Operation]:
    """Add the copy to the group that makes its source.

    Args:
        with_reduces: also add reductions of it.
        transposes: the copy may be transposed.

    Returns:
        The operations that were added; none if the group can't compute them.
    """
    operations = [*copy.operations, *(copy.reduces if with_reduces else ())]
    copies = {operation.results[0]: copy.index_map for operation in copy.operations}
    sources = {copy.operations[0].results[0]: View(copy.source.value, copy.source.value.layout)}
    reductions = copy.reductions if with_reduces else ()
    if not maker.try_add_copies(operations, copies, reductions, transposes, sources):
        return []
    fusion.group_of |= dict.fromkeys(operations, maker.number)
    return operations
