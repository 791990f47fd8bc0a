"""Fusion groups: the operations that one kernel computes.

A group is a set of element-wise operations and reductions that one program computes, by itself or as the epilogue of a
convolution (its anchor). It reads each tensor once. Reductions to channel vectors or to one number are complete only
after the kernel, so their consumers are in later groups; results of per-row reductions are available within the group.
Operations on few elements are recomputed in each group that reads them, where that is possible (inlining.py).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING

import torch

from ..ir.access import Access
from ..ir.collectives import begins_collective
from ..ir.gather import counts_up
from ..ir.graph import Call, Conv, Map, Operation, OverDims, Reduce, Value, View
from ..ir.index_maps import IndexMap, full_map_of, operand_maps
from ..ir.iteration_space import IterationSpace, find_space, reduces_rows
from ..ir.kernel_limits import (
    MOST_MAPS,
    MOST_OPERATIONS,
    MOST_OUTPUTS,
    MOST_STRIDED,
    MOST_TRANSPOSED_READ,
    MOST_TRANSPOSED_WRITTEN,
)
from ..ir.layout import Layout
from ..ir.product import Product
from ..ir.targets import Targets
from .inlining import inlined

if TYPE_CHECKING:
    from ..ir.gather import Gather


DEVICES = {"cuda"}  # whose kernels reduce columns per height, beside rows
InputKey = tuple[Value, Layout, IndexMap]  # a value, a view's layout, and the index map by which that is read


@dataclass(eq=False)
class FusionGroup:
    """Operations that one kernel computes, and what it reads and writes.

    Attributes:
        space: the iteration space.
        anchor: the convolution whose epilogue the operations are, if any.
        operations: the group's own operations, in the graph's order.
        recomputed: operations of other groups that this one computes for itself.
        inputs: the views that the group reads, by value, layout and index map.
        destinations: result -> existing tensor that gets it.
        reused: result -> input whose memory it takes.
        copies: result -> index map by which it is written, where that is not the group's own order.
        sources: copy -> the group's result that it is computed from, where that is read through maps.
        parts: copy -> the slice of another tensor that it writes.
        transposed: key of a contiguous copy -> key of the transposed input that the group reads instead.
        gathers: value that is not materialised -> the gather that reads its rows from a table.
        operands, reductions: the index maps (of scans, those of one number per row) for which ``space`` was found.
        per_row: operations that compute one number per row.
        live_results: results that other groups or the graph's caller may need.
    """

    number: int
    space: IterationSpace | None
    anchor: Conv | None = None
    operations: list[Operation] = field(default_factory=list)
    recomputed: list[Operation] = field(default_factory=list)
    inputs: dict[InputKey, View] = field(default_factory=dict)
    destinations: dict[Value, View] = field(default_factory=dict)
    reused: dict[Value, View] = field(default_factory=dict)
    copies: dict[Value, IndexMap] = field(default_factory=dict)
    sources: dict[Value, View] = field(default_factory=dict)
    parts: dict[Value, View] = field(default_factory=dict)
    transposed: dict[InputKey, InputKey] = field(default_factory=dict)
    gathers: dict[Value, Gather] = field(default_factory=dict)
    operands: set[IndexMap] = field(default_factory=set)
    reductions: set[IndexMap] = field(default_factory=set)
    per_row: set[Operation] = field(default_factory=set)
    live_results: set[Value] = field(default_factory=set)

    @property
    def numel(self) -> int:
        """Elements of the iteration space."""
        return self.space.numel

    @property
    def members(self) -> list[Operation]:
        """The anchor and the group's own operations."""
        return [*([self.anchor] if self.anchor else []), *self.operations]

    @property
    def computed(self) -> list[Operation]:
        """All operations that the kernel computes, recomputed ones first."""
        return [*self.recomputed, *self.members]

    @property
    def makes(self) -> set[Value]:
        """Results of the group's members."""
        return {operation.results[0] for operation in self.members}

    @property
    def reads(self) -> set[Value]:
        """Values that the group reads and does not make."""
        return {value for value, _, _ in self.inputs} - self.makes

    def input_key(self, view: View, index_map: IndexMap) -> InputKey:
        """Key in ``inputs`` under which the group would hold this view."""
        key = view.value, view.layout, index_map
        return self.transposed.get(key, key)

    def full_inputs(self) -> Iterator[View]:
        """Inputs that are read element by element, in the result's order or through maps."""
        full = self.full_map
        return (
            view for key, view in self.inputs.items() if (key[2] == full and view.is_full) or isinstance(key[2], Access)
        )

    def inputs_in_memory(self) -> list[tuple[View, IndexMap]]:
        """Inputs that the kernel reads from memory, with their index maps: what it neither makes nor gathers, and no
        numbers of channels. What it recomputes for some readers it may read for others, by another map."""
        made, recomputed = self.makes, {operation.results[0] for operation in self.recomputed}
        return [
            (view, index_map)
            for (_, _, index_map), view in self.inputs.items()
            if view.value not in made | self.gathers.keys()
            and not (view.value in recomputed and self.knows(view, index_map))
            and not is_channel_index(self, view, index_map)
        ]

    @property
    def full_map(self) -> IndexMap:
        """Index map of a full-size operand: one element per element of the iteration space."""
        return full_map_of(self.space.numel)

    def written_map(self, value: Value) -> IndexMap | None:
        """Index map by which a result is written through a placement; None if it is written in the order of
        iteration."""
        return self.copies.get(value, self.full_map if self.space.order else None)

    @property
    def rows(self) -> IndexMap | None:
        """Index map of the per-row reductions, if there are any."""
        if self.anchor:
            return None
        return next((index_map for index_map in self.reductions if reduces_rows(self.numel, index_map)), None)

    def supports(self, space: IterationSpace) -> bool:
        """True if the device's kernels compute in ``space``, and the group's channel vectors are channel vectors there,
        too: they might be per-row."""
        if space.has_heights and any(member.results[0].device.type not in DEVICES for member in self.members):
            return False
        if space.channel_map == self.space.channel_map:
            return True
        channel_wise = (each for each in self.operations if isinstance(each, Map) and each not in self.per_row)
        sizes = (operation.results[0].layout.numel for operation in channel_wise)
        return not any(2 < size < self.numel for size in sizes)

    def read_by(self, operation: Operation) -> list[tuple[View, IndexMap]]:
        """Operands of an operation, with the index maps by which the group reads them."""
        if isinstance(operation, OverDims):
            return [(operation.input, self.full_map)]
        operands = self.operand_maps(operation)
        if operation.results[0] in self.copies or operation.results[0].layout.numel == self.numel:
            return operands
        index_map = self.rows if operation in self.per_row else self.space.channel_map
        return [(view, index_map if own else ()) for view, own in operands]

    def operand_maps(self, operation: Map) -> list[tuple[View, IndexMap]]:
        """Operands of an operation, with their index maps over the result as the group computes it.

        A copy in another memory order is computed in the group's own order; only the addresses it is written to differ.
        """
        (result,) = operation.results
        operands = operand_maps(operation)
        if result in self.sources:
            return [(self.sources[result], self.full_map)]
        if result not in self.copies or not (result.layout.is_dense or result in self.parts):
            return operands
        return [(view, self.full_map) for view, _ in operands]

    def knows(self, view: View, index_map: IndexMap) -> bool:
        """True if the group has computed its own result ``view`` by the time it is read by ``index_map``."""
        maker = view.value.maker
        if isinstance(maker, Reduce) or maker in self.per_row:
            return index_map == self.rows and maker in self.per_row
        return index_map == self.full_map

    def traced(self, operation: Operation, stored: Container[int] = ()) -> Computation:
        """Trace the operations of the group that compute an operation's result, in order, and the inputs they read.

        Args:
            stored: results of the group that are read as inputs, and not traced further.

        Raises:
            ValueError: the operation needs a view that the group neither reads nor can compute.
        """
        members = set(self.computed)
        needed, inputs, todo = {operation}, {}, self.read_by(operation)
        seen: set[InputKey] = set()
        while todo:
            view, index_map = todo.pop()
            if (read := (view.value, view.layout, index_map)) in seen:
                continue
            seen.add(read)
            maker = view.value.maker
            if maker in members and self.knows(view, index_map):
                if maker is self.anchor or (view.value in stored and (view.is_full or index_map == self.rows)):
                    inputs[view.value, view.layout, index_map] = view
                elif maker not in needed:
                    needed.add(maker)
                    todo += self.read_by(maker)
            elif (key := self.input_key(view, index_map)) in self.inputs:
                inputs[key] = self.inputs[key]
            elif (operands := inlined(view, index_map, self.full_map)) is not None:
                todo += operands
            else:
                raise ValueError(f"{view} is no input of the group that needs it")
        return [member for member in self.computed if member in needed], inputs

    def recomputes(self, values: Container[Value]) -> bool:
        """True if the group recomputes one of these values, which are not its own, where it reads them."""
        members, seen = set(self.computed), set(self.inputs)
        todo = [read for operation in members if operation is not self.anchor for read in self.read_by(operation)]
        while todo:
            view, index_map = todo.pop()
            if view.value in values:
                return True
            key = self.input_key(view, index_map)
            if key not in seen and not (view.value.maker in members and self.knows(view, index_map)):
                seen.add(key)
                todo += inlined(view, index_map, self.full_map) or []
        return False

    # Changes

    def copy(self) -> FusionGroup:
        """Copy of the group that can be changed independently of it."""
        collections = [item.name for item in fields(self) if item.default_factory is not MISSING]
        return replace(self, **{name: getattr(self, name).copy() for name in collections})

    def restore(self, saved: FusionGroup) -> None:
        """Undo all changes since ``saved`` was copied from the group. ``saved`` must not be used afterwards."""
        for item in fields(self):
            setattr(self, item.name, getattr(saved, item.name))

    def absorb(self, other: FusionGroup, space: IterationSpace, place_of: Mapping[Operation, int]) -> None:
        """Merge another group's operations, inputs and results into this one.

        Args:
            space: the iteration space of the merged group.
            place_of: position of each operation in the graph.
        """

        def ordered(operations: Iterable[Operation]) -> list[Operation]:
            return sorted(set(operations), key=lambda operation: place_of[operation])

        self.space = space
        self.operations = ordered([*self.operations, *other.operations])
        members = set(self.operations)
        self.recomputed = ordered({*self.recomputed, *other.recomputed} - members)
        self.inputs |= other.inputs
        self.operands |= other.operands
        self.copies |= other.copies
        self.sources |= other.sources
        self.reductions |= other.reductions
        self.live_results |= other.live_results
        self.per_row |= other.per_row

    def keep_only(self, outputs: Iterable[Operation], others: Container[Operation] = ()) -> None:
        """Drop operations that ``outputs`` do not need; needed ones in ``others`` (other groups') become recomputed."""
        needed, inputs = set(), {}
        for operation in outputs:
            if operation is not self.anchor:
                operations, read = self.traced(operation)
                needed |= set(operations)
                inputs |= read
        kept = [operation for operation in (*self.recomputed, *self.operations) if operation in needed]
        own = [operation for operation in self.operations if operation in needed]
        self.recomputed = [operation for operation in kept if operation in others]
        self.operations = [operation for operation in own if operation not in others]
        self.inputs = inputs
        self.copies = {value: index_map for value, index_map in self.copies.items() if value in self.makes}
        self.operands = {*(index_map for _, _, index_map in inputs), *self.copies.values()}

    def try_add_copies(
        self,
        operations: list[Operation],
        copies: Mapping[Value, IndexMap],
        reductions: Collection[IndexMap] = (),
        transposes: bool = False,
        sources: Mapping[Value, View] | None = None,
    ) -> bool:
        """Add operations that write copies of the group's results, if one kernel can compute all of it.

        Args:
            operations: the copies, and reductions of them.
            copies: copy -> index map by which its elements are written.
            reductions: index maps of the reductions among ``operations``.
            transposes: a copy may be transposed.
            sources: copy -> the result that it is computed from, where it is read through maps.

        Returns:
            False, and the group is unchanged, if one kernel can't.
        """
        strided = [*self.copies.values(), *copies.values()]
        reductions = self.reductions | set(reductions)
        space = find_space(self.numel, self.operands | set(strided), reductions, transposes)
        if space is None or not all(map(space.is_strided, strided)) or not self.supports(space):
            return False
        if has_too_many_strided(space, self.inputs, strided):
            return False
        if has_too_many_transposed(space, self.inputs, strided):
            return False
        if self.recomputes(copies):  # in the copies' order; once they are the group's, it would read them in its own
            return False
        if len(self.live_results) + len(operations) > MOST_OUTPUTS:
            return False
        if len(self.computed) + len(operations) > MOST_OPERATIONS:
            return False
        self.space, self.reductions = space, reductions
        self.operations += operations
        self.copies |= copies
        self.sources |= sources or {}
        self.live_results |= {operation.results[0] for operation in operations}
        return True


Inputs = dict[InputKey, View]
Computation = tuple[list[Operation], Inputs]


def has_too_many_strided(
    space: IterationSpace, inputs: Iterable[InputKey], copies: Collection[IndexMap] = (), others: int = 0
) -> bool:
    """True if more strided operands are read or copied, or through more maps, than a kernel supports. Operands whose
    elements lie alike, such as slices of one tensor, count once (csrc/program/program.h).

    Args:
        others: strided operands besides these.
    """
    read = [index_map for _, _, index_map in inputs]
    accesses = [index_map for index_map in read if isinstance(index_map, Access)]
    unlike = {index_map for index_map in read if not isinstance(index_map, Access)}
    maps = sum(len(access.terms) for access in accesses)
    maps += sum(isinstance(index_map, Targets) for index_map in copies)
    strided = sum(map(space.is_strided, [*unlike, *accesses])) + len(copies) + others
    return strided + maps > MOST_STRIDED or maps > MOST_MAPS


def has_too_many_transposed(space: IterationSpace, inputs: Iterable[InputKey], copies: Iterable[IndexMap]) -> bool:
    """True if more transposed operands are read or written than a kernel supports."""
    read = sum(space.kind(index_map) == "transposed" for _, _, index_map in inputs)
    written = sum(space.kind(index_map) == "transposed" for index_map in copies)
    return read > MOST_TRANSPOSED_READ or written > MOST_TRANSPOSED_WRITTEN


def is_collective(operation: Operation | None) -> bool:
    """True for a call that begins a collective."""
    return isinstance(operation, Call) and begins_collective(operation.operator)


def same_kind(group: FusionGroup, operations: Iterable[Operation]) -> bool:
    """True if the operations are on the group's device, compute in its precision (fp64 or narrower), and may follow
    the product that it begins with."""
    if not may_follow(group.anchor, operations):
        return False
    operations = [*group.members, *operations]
    if len({operation.results[0].device for operation in operations}) > 1:
        return False
    dtypes = {view.value.dtype for operation in operations for view in operation.operands}
    dtypes |= {value.dtype for operation in operations for value in operation.results}
    return len({dtype == torch.float64 for dtype in dtypes if dtype.is_floating_point}) <= 1


def may_follow(anchor: Conv | None, operations: Iterable[Operation]) -> bool:
    """True if the operations may be in the epilogue of this anchor: any in a convolution's, chosen ones in a product's
    (fusion/anchor_products.py)."""
    return not isinstance(anchor, Product) or anchor.epilogue.issuperset(operations)


def is_channel_index(group: FusionGroup, view: View, index_map: IndexMap) -> bool:
    """True if the view is an ``arange`` along the channels, which programs know without reading memory."""
    return counts_up(view.value) and not view.layout.offset and group.space.kind(index_map) == "channel"
