"""What one kernel computes.

A region is a set of element-wise operations and reductions that one program computes, alone or behind a convolution
(its anchor). It reads each tensor once. What it reduces to vectors of channels or to one number is known only after it,
so what needs that is in a later one; what it reduces row by row it knows as it goes on.

Operations of few elements (a vector of channels, a number) are computed again in each region that reads them, where
that is possible: as kernels of their own they would cost more than they compute.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ..ir.gather import counts_up
from ..ir.graph import Conv, Map, Operation, Random, Reduce, Value, View
from ..ir.iteration_space import BY_PLACE, Digits, Space, operand_digits, reduces_rows
from ..ir.kernel_limits import MOST_PLACED, MOST_TRANSPOSED_READ, MOST_TRANSPOSED_WRITTEN, SMALL
from ..ir.layout import Layout

if TYPE_CHECKING:
    from ..ir.gather import LookUp


Leaf = tuple[Value, Layout, Digits]  # a value, how it is looked at, and how that is read


@dataclass(eq=False)
class Region:
    """operations: in the graph's order. operands, reductions: the digits by which `space` was found."""

    number: int
    space: Space | None
    anchor: Conv | None = None
    operations: list[Operation] = field(default_factory=list)
    recomputed: list[Operation] = field(default_factory=list)  # of others, for itself
    leaves: dict[Leaf, View] = field(default_factory=dict)  # what it reads, and how
    into: dict[Value, View] = field(default_factory=dict)  # result -> a tensor that is there, which gets it
    over: dict[Value, View] = field(default_factory=dict)  # result -> what it reads, in whose memory that is written
    copies: dict[Value, Digits] = field(default_factory=dict)  # result -> where it lies, if not as the region's
    parts: dict[Value, View] = field(default_factory=dict)  # a copy -> of which memory it is a part
    turned: dict[Leaf, Leaf] = field(default_factory=dict)  # what it would read, if it were copied: what it reads
    look_ups: dict[Value, LookUp] = field(default_factory=dict)  # value -> by what it is read, which is not made
    operands: set[Digits] = field(default_factory=set)
    reductions: set[Digits] = field(default_factory=set)
    of_rows: set[Operation] = field(default_factory=set)  # operations that give a number a row
    open_results: set[Value] = field(default_factory=set)  # values that it makes and that others may need

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
        return {value for value, _, _ in self.leaves} - self.makes

    def leaf(self, view: View, digits: Digits) -> Leaf:
        """Where it has the view among its leaves, if it has it there."""
        found = view.value, view.layout, digits
        return self.turned.get(found, found)

    def whole_leaves(self) -> Iterator[View]:
        """Those of the leaves that are read element by element, in the order of the result's."""
        return (view for key, view in self.leaves.items() if key[2] == self.whole and view.is_whole)

    @property
    def whole(self) -> Digits:
        """The digits of what has an element for each of the result's."""
        return whole_of(self.space.numel)

    @property
    def rows(self) -> Digits | None:
        """The digits of what is reduced row by row, if anything is."""
        found = [] if self.anchor else [each for each in self.reductions if reduces_rows(self.numel, each)]
        return found[0] if found else None

    def takes(self, space: Space) -> bool:
        """Whether its vectors of channels are such in this space, too: as numbers of rows they are another kind."""
        if space.channel_digits == self.space.channel_digits:
            return True
        sizes = (each.results[0].layout.numel for each in self.operations if each not in self.of_rows)
        return not any(2 < size < self.numel for size in sizes)

    def read_by(self, operation: Operation) -> list[tuple[View, Digits]]:
        """An operation's operands, and how the region reads them."""
        if isinstance(operation, Reduce):
            return [(operation.input, self.whole)]
        found = self.operand_digits(operation)
        if operation.results[0].layout.numel == self.numel:
            return found
        digits = self.rows if operation in self.of_rows else self.space.channel_digits
        return [(view, digits if own else ()) for view, own in found]

    def operand_digits(self, operation: Map) -> list[tuple[View, Digits]]:
        """How an operation's operands vary over its result as the region computes it. A copy in another order of memory
        is computed in the region's own order; only where it is written differs."""
        (result,) = operation.results
        found = operand_digits(operation)
        if result not in self.copies or not result.layout.is_dense:
            return found
        return [(view, self.whole) for view, _ in found]

    def knows(self, view: View, digits: Digits) -> bool:
        """Whether a result of its own is known where it is read with these digits."""
        maker = view.value.maker
        if isinstance(maker, Reduce) or maker in self.of_rows:
            return digits == self.rows and maker in self.of_rows
        return digits == self.whole

    def traced(self, operation: Operation, stored: Container[int] = ()) -> Computation:
        """Those of the region's operations that compute an operation's result, in order, and what they read: of the
        region's own results those that are stored."""
        members = {each for each in self.computed}
        needed, leaves, todo = {operation}, {}, self.read_by(operation)
        while todo:
            view, digits = todo.pop()
            maker = view.value.maker
            if maker in members and self.knows(view, digits):
                if maker is self.anchor or (view.value in stored and (view.is_whole or digits == self.rows)):
                    leaves[view.value, view.layout, digits] = view
                elif maker not in needed:
                    needed.add(maker)
                    todo += self.read_by(maker)
            elif (key := self.leaf(view, digits)) in self.leaves:
                leaves[key] = self.leaves[key]
            elif (found := inlined(view, digits, self.whole)) is not None:
                todo += found
            else:
                raise ValueError(f"{view} is not what the region reads")
        return [each for each in self.computed if each in needed], leaves


def copy_of(region: Region) -> Region:
    """One that changes without the other."""
    found = copy.copy(region)
    for name, value in vars(region).items():
        if isinstance(value, (list, dict, set)):
            setattr(found, name, copy.copy(value))
    return found


def whole_of(numel: int) -> Digits:
    return ((1, numel),) if numel > 1 else ()


def is_small(operation: Operation | None) -> bool:
    """Whether it is better computed again by those who need it: constants, random numbers, casts to a wider data type
    and what goes on with reductions are, whatever their size."""
    if not isinstance(operation, Map):
        return False
    (result,) = operation.results
    if isinstance(operation, Random) or not operation.inputs or result.layout.numel <= SMALL:
        return True
    if operation.of_reductions:
        return True
    source = operation.inputs[0]
    return operation.name == "_to_copy" and source.value.dtype.itemsize < result.dtype.itemsize


def inlined(view: View, digits: Digits, region: Digits) -> list[tuple[View, Digits]] | None:
    """For a small operation's result, read with these digits by a region that has those: its operands and how they are
    read then. None if a program can't compute it where it is read."""
    operation = view.value.maker
    whole = view.value.layout
    if not is_small(operation) or not whole.is_dense:
        return None
    if not operation.inputs:
        return []
    if view.layout.offset or view.elements != whole.numel:
        return None  # a part of it
    if isinstance(operation, Random) and not digits == region == whole_of(whole.numel):
        return None
    found = []
    for operand, own in operand_digits(operation):
        if not own or own == BY_PLACE:
            found.append((operand, own))
        elif own == whole_of(whole.numel):
            found.append((operand, digits))
        elif digits == whole_of(whole.numel):
            found.append((operand, own))
        else:
            return None
    return found


Leaves = dict[Leaf, View]
Computation = tuple[list[Operation], Leaves]


def are_many_placed(space: Space, leaves: Iterable[Leaf], copies: int = 0) -> bool:
    """Whether more of what a region reads and copies lies in other orders than a kernel takes."""
    return sum(space.is_placed(digits) for _, _, digits in leaves) + copies > MOST_PLACED


def are_many_turned(space: Space, leaves: Iterable[Leaf], copies: Iterable[Digits]) -> bool:
    """The same of what is turned."""
    read = sum(space.kind(digits) == "turned" for _, _, digits in leaves)
    return read > MOST_TRANSPOSED_READ or sum(space.kind(each) == "turned" for each in copies) > MOST_TRANSPOSED_WRITTEN


def same_kind(region: Region, operations: Iterable[Operation]) -> bool:
    """Whether they are on the region's device and compute in its precision."""
    everything = [*region.members, *operations]
    if len({each.results[0].device for each in everything}) > 1:
        return False
    types = {view.value.dtype for each in everything for view in each.operands}
    types |= {value.dtype for each in everything for value in each.results}
    return len({each == torch.float64 for each in types if each.is_floating_point}) <= 1


def is_channel_index(region: Region, view: View, digits: Digits) -> bool:
    return counts_up(view.value) and not view.layout.offset and region.space.kind(digits) == "channel"
