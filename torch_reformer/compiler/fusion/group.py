"""What one kernel computes.

A group is a set of element-wise operations and reductions that one program computes, alone or behind a convolution
(its anchor). It reads each tensor once. What it reduces to vectors of channels or to one number is known only after it,
so what needs that is in a later one; what it reduces row by row it knows as it goes on.

Operations of few elements (a vector of channels, a number) are computed again in each group that reads them, where
that is possible: as kernels of their own they would cost more than they compute.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING

import torch

from ..ir.gather import counts_up
from ..ir.graph import Conv, Map, Operation, Random, Reduce, Value, View
from ..ir.iteration_space import BY_PLACE, IndexMap, IterationSpace, find_space, operand_maps, reduces_rows
from ..ir.kernel_limits import (
    MOST_OPERATIONS,
    MOST_OUTPUTS,
    MOST_STRIDED,
    MOST_TRANSPOSED_READ,
    MOST_TRANSPOSED_WRITTEN,
    SMALL,
)
from ..ir.layout import Layout

if TYPE_CHECKING:
    from ..ir.gather import Gather


InputKey = tuple[Value, Layout, IndexMap]  # a value, how it is looked at, and how that is read


@dataclass(eq=False)
class FusionGroup:
    """operations: in the graph's order. operands, reductions: the index map by which `space` was found."""

    number: int
    space: IterationSpace | None
    anchor: Conv | None = None
    operations: list[Operation] = field(default_factory=list)
    recomputed: list[Operation] = field(default_factory=list)  # of others, for itself
    inputs: dict[InputKey, View] = field(default_factory=dict)  # what it reads, and how
    into: dict[Value, View] = field(default_factory=dict)  # result -> a tensor that is there, which gets it
    over: dict[Value, View] = field(default_factory=dict)  # result -> what it reads, in whose memory that is written
    copies: dict[Value, IndexMap] = field(default_factory=dict)  # result -> where it lies, if not as the group's
    parts: dict[Value, View] = field(default_factory=dict)  # a copy -> of which memory it is a part
    transposed: dict[InputKey, InputKey] = field(
        default_factory=dict
    )  # what it would read, if it were copied: what it reads
    gathers: dict[Value, Gather] = field(default_factory=dict)  # value -> by what it is read, which is not made
    operands: set[IndexMap] = field(default_factory=set)
    reductions: set[IndexMap] = field(default_factory=set)
    per_row: set[Operation] = field(default_factory=set)  # operations that give a number a row
    live_results: set[Value] = field(default_factory=set)  # values that it makes and that others may need

    @property
    def numel(self) -> int:
        return self.space.numel

    @property
    def members(self) -> list[Operation]:
        return [*([self.anchor] if self.anchor else []), *self.operations]

    @property
    def computed(self) -> list[Operation]:
        return [*self.recomputed, *self.members]

    @property
    def makes(self) -> set[Value]:
        """Its operations' results."""
        return {each.results[0] for each in self.members}

    @property
    def reads(self) -> set[Value]:
        """The values that it reads and does not make."""
        return {value for value, _, _ in self.inputs} - self.makes

    def input_key(self, view: View, index_map: IndexMap) -> InputKey:
        """Where it has the view among its inputs, if it has it there."""
        found = view.value, view.layout, index_map
        return self.transposed.get(found, found)

    def full_inputs(self) -> Iterator[View]:
        """Those of the inputs that are read element by element, in the order of the result's."""
        return (view for key, view in self.inputs.items() if key[2] == self.full_map and view.is_full)

    @property
    def full_map(self) -> IndexMap:
        """The index map of what has an element for each of the result's."""
        return full_map_of(self.space.numel)

    @property
    def rows(self) -> IndexMap | None:
        """The index map of what is reduced row by row, if anything is."""
        found = [] if self.anchor else [each for each in self.reductions if reduces_rows(self.numel, each)]
        return found[0] if found else None

    def supports(self, space: IterationSpace) -> bool:
        """Whether its vectors of channels are such in this space, too: as numbers of rows they are another kind."""
        if space.channel_map == self.space.channel_map:
            return True
        sizes = (each.results[0].layout.numel for each in self.operations if each not in self.per_row)
        return not any(2 < size < self.numel for size in sizes)

    def read_by(self, operation: Operation) -> list[tuple[View, IndexMap]]:
        """An operation's operands, and how the group reads them."""
        if isinstance(operation, Reduce):
            return [(operation.input, self.full_map)]
        found = self.operand_maps(operation)
        if operation.results[0].layout.numel == self.numel:
            return found
        index_map = self.rows if operation in self.per_row else self.space.channel_map
        return [(view, index_map if own else ()) for view, own in found]

    def operand_maps(self, operation: Map) -> list[tuple[View, IndexMap]]:
        """How an operation's operands vary over its result as the group computes it. A copy in another order of memory
        is computed in the group's own order; only where it is written differs."""
        (result,) = operation.results
        found = operand_maps(operation)
        if result not in self.copies or not result.layout.is_dense:
            return found
        return [(view, self.full_map) for view, _ in found]

    def knows(self, view: View, index_map: IndexMap) -> bool:
        """Whether a result of its own is known where it is read with these index map."""
        maker = view.value.maker
        if isinstance(maker, Reduce) or maker in self.per_row:
            return index_map == self.rows and maker in self.per_row
        return index_map == self.full_map

    def traced(self, operation: Operation, stored: Container[int] = ()) -> Computation:
        """Those of the group's operations that compute an operation's result, in order, and what they read: of the
        group's own results those that are stored."""
        members = {each for each in self.computed}
        needed, inputs, todo = {operation}, {}, self.read_by(operation)
        while todo:
            view, index_map = todo.pop()
            maker = view.value.maker
            if maker in members and self.knows(view, index_map):
                if maker is self.anchor or (view.value in stored and (view.is_full or index_map == self.rows)):
                    inputs[view.value, view.layout, index_map] = view
                elif maker not in needed:
                    needed.add(maker)
                    todo += self.read_by(maker)
            elif (key := self.input_key(view, index_map)) in self.inputs:
                inputs[key] = self.inputs[key]
            elif (found := inlined(view, index_map, self.full_map)) is not None:
                todo += found
            else:
                raise ValueError(f"{view} is not what the group reads")
        return [each for each in self.computed if each in needed], inputs

    # Changes

    def copy(self) -> FusionGroup:
        """A group that changes without this one."""
        collections = [each.name for each in fields(self) if each.default_factory is not MISSING]
        return replace(self, **{name: getattr(self, name).copy() for name in collections})

    def restore(self, saved: FusionGroup) -> None:
        """Undo what changed since ``saved`` was copied; nobody else may use ``saved`` afterwards."""
        for each in fields(self):
            setattr(self, each.name, getattr(saved, each.name))

    def absorb(self, other: FusionGroup, space: IterationSpace, place_of: Mapping[Operation, int]) -> None:
        """Compute what another group computes, too, over ``space``. place_of: the order of the graph's operations."""

        def ordered(operations: Iterable[Operation]) -> list[Operation]:
            return sorted(set(operations), key=lambda each: place_of[each])

        self.space = space
        self.operations = ordered([*self.operations, *other.operations])
        members = set(self.operations)
        self.recomputed = ordered(each for each in (*self.recomputed, *other.recomputed) if each not in members)
        self.inputs |= other.inputs
        self.operands |= other.operands
        self.copies |= other.copies
        self.reductions |= other.reductions
        self.live_results |= other.live_results
        self.per_row |= other.per_row

    def keep_only(self, outputs: Iterable[Operation], others: Container[Operation] = ()) -> None:
        """Drop what the results of ``outputs`` do not need. Of the rest, operations of other groups (``others``) become
        recomputed ones."""
        needed, inputs = set(), {}
        for operation in outputs:
            if operation is not self.anchor:
                operations, read = self.traced(operation)
                needed |= set(operations)
                inputs |= read
        self.recomputed = [each for each in (*self.recomputed, *self.operations) if each in needed and each in others]
        self.operations = [each for each in self.operations if each in needed and each not in others]
        self.inputs = inputs
        self.copies = {value: index_map for value, index_map in self.copies.items() if value in self.makes}
        self.operands = {*(index_map for _, _, index_map in inputs), *self.copies.values()}

    def try_add_copies(
        self,
        operations: list[Operation],
        copies: Mapping[Value, IndexMap],
        reductions: Collection[IndexMap] = (),
        transposes: bool = False,
    ) -> bool:
        """Compute these operations, too, if one kernel can: copies of results (value -> where its elements lie), and
        what is reduced of them. transposes: whether a copy may be transposed. Changes nothing if it returns False."""
        strided = [*self.copies.values(), *copies.values()]
        reductions = self.reductions | set(reductions)
        space = find_space(self.numel, self.operands | set(strided), reductions, transposes)
        if space is None or not all(map(space.is_strided, strided)) or not self.supports(space):
            return False
        if has_too_many_strided(space, self.inputs, len(strided)):
            return False
        if has_too_many_transposed(space, self.inputs, strided):
            return False
        if len(self.live_results) + len(operations) > MOST_OUTPUTS:
            return False
        if len(self.computed) + len(operations) > MOST_OPERATIONS:
            return False
        self.space, self.reductions = space, reductions
        self.operations += operations
        self.copies |= copies
        self.live_results |= {operation.results[0] for operation in operations}
        return True


def full_map_of(numel: int) -> IndexMap:
    return ((1, numel),) if numel > 1 else ()


def is_small(operation: Operation | None) -> bool:
    """Whether it is better computed again by those who need it: constants, random numbers, casts to a wider data type
    and what goes on with reductions are, whatever their size."""
    if not isinstance(operation, Map):
        return False
    (result,) = operation.results
    if isinstance(operation, Random) or not operation.inputs or result.layout.numel <= SMALL:
        return True
    if operation.after_reduction:
        return True
    source = operation.inputs[0]
    return operation.name == "_to_copy" and source.value.dtype.itemsize < result.dtype.itemsize


def inlined(view: View, index_map: IndexMap, group: IndexMap) -> list[tuple[View, IndexMap]] | None:
    """For a small operation's result, read with these index map by a group that has those: its operands and how they are
    read then. None if a program can't compute it where it is read."""
    operation = view.value.maker
    full_map = view.value.layout
    if not is_small(operation) or not full_map.is_dense:
        return None
    if not operation.inputs:
        return []
    if view.layout.offset or view.elements != full_map.numel:
        return None  # a part of it
    if isinstance(operation, Random) and not index_map == group == full_map_of(full_map.numel):
        return None
    found = []
    for operand, own in operand_maps(operation):
        if not own or own == BY_PLACE:
            found.append((operand, own))
        elif own == full_map_of(full_map.numel):
            found.append((operand, index_map))
        elif index_map == full_map_of(full_map.numel):
            found.append((operand, own))
        else:
            return None
    return found


Inputs = dict[InputKey, View]
Computation = tuple[list[Operation], Inputs]


def has_too_many_strided(space: IterationSpace, inputs: Iterable[InputKey], copies: int = 0) -> bool:
    """Whether more of what a group reads and copies lies in other orders than a kernel takes."""
    return sum(space.is_strided(index_map) for _, _, index_map in inputs) + copies > MOST_STRIDED


def has_too_many_transposed(space: IterationSpace, inputs: Iterable[InputKey], copies: Iterable[IndexMap]) -> bool:
    """The same of what is transposed."""
    read = sum(space.kind(index_map) == "transposed" for _, _, index_map in inputs)
    return (
        read > MOST_TRANSPOSED_READ
        or sum(space.kind(each) == "transposed" for each in copies) > MOST_TRANSPOSED_WRITTEN
    )


def same_kind(group: FusionGroup, operations: Iterable[Operation]) -> bool:
    """Whether they are on the group's device and compute in its precision."""
    everything = [*group.members, *operations]
    if len({each.results[0].device for each in everything}) > 1:
        return False
    types = {view.value.dtype for each in everything for view in each.operands}
    types |= {value.dtype for each in everything for value in each.results}
    return len({each == torch.float64 for each in types if each.is_floating_point}) <= 1


def is_channel_index(group: FusionGroup, view: View, index_map: IndexMap) -> bool:
    return counts_up(view.value) and not view.layout.offset and group.space.kind(index_map) == "channel"
