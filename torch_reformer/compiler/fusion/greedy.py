"""Greedy fusion: in the graph's order, each operation joins the group with which it shares the most bytes.

Operations that no generated kernel computes are extern calls."""

from __future__ import annotations

import copy

from ...runtime.sizes import about_cost
from ..ir.access import Access
from ..ir.custom_ops import PARTS
from ..ir.graph import Conv, Graph, Indexed, Map, Operation, OverDims, Reduce, Value, View, is_copy
from ..ir.index_maps import IndexMap, full_map_of, is_strided, operand_maps, result_maps, without
from ..ir.iteration_space import IterationSpace, find_space, fits
from ..ir.kernel_limits import LITTLE, MOST_INLINED, MOST_INPUTS, MOST_OPERATIONS, MOST_OUTPUTS
from ..ir.product import result_layout
from ..ir.stages import blamed
from .group import FusionGroup, has_too_many_strided, is_collective, same_kind
from .inlining import FEW, inlined, is_little, is_small, mark_few


def _is_copy(operation: Operation) -> bool:
    """True for a copy in another order, which the kernel that computes its source can write (fuse_copies.py)."""
    return isinstance(operation, Indexed) or is_copy(operation)


class Fusion:
    """Partition of a graph's operations into fusion groups and extern calls, which share one numbering.

    Attributes:
        groups, extern_calls: by number.
        group_of: operation -> number of its group or call.
        ordered: numbers of the calls that keep their order: random numbers and collectives.
        needs: for each number, the groups and calls that come before it, as bits.
        readers: value -> groups that make it, or read it element by element or through maps.
        left: value -> uses by operations that are in no group yet.
        place_of: operation -> position in the graph.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.groups: dict[int, FusionGroup] = {}
        self.group_of: dict[Operation, int] = {}
        self.extern_calls: dict[int, Operation] = {}
        self.ordered: list[int] = []
        # Collectives so far, and what they need, as bits. Later groups need them: merged with earlier ones, they would
        # put the collectives off.
        self._begun = 0
        self.needs: list[int] = []
        self.readers: dict[Value, list[int]] = {}
        self.left: dict[Value, int] = {}
        self.place_of = {operation: i for i, operation in enumerate(graph.operations)}
        self._of_size: dict[int, int] = {}  # elements -> the groups that compute so many, as bits
        for operation in graph.operations:
            for view in operation.operands:
                self.left[view.value] = self.left.get(view.value, 0) + 1
        for view in graph.output_views():
            self.left[view.value] = self.left.get(view.value, 0) + 1
        mark_few(graph)

    def run(self) -> None:
        """Put each operation into a group or call; small ones only where their results are needed in memory."""
        writers = [operation for operation in self.graph.operations if operation.writes]
        for operation in self.graph.operations:
            if is_small(operation) or operation.writes:
                continue
            with blamed("fusion", [operation]):
                if isinstance(operation, (Map, OverDims)):
                    self._place(operation)
                else:
                    self._extern_call(operation)
        for view in self.graph.output_views():
            with blamed("fusion", filter(None, [view.value.maker])):
                self._make(view)
        # Writes to existing tensors come last: what they write then joins groups that read the same tensors.
        for operation in writers:
            with blamed("fusion", [operation]):
                self._extern_call(operation)

    def __str__(self) -> str:
        groups = {n: group.members for n, group in self.groups.items()}
        groups |= {n: [operation] for n, operation in self.extern_calls.items()}
        return "\n".join(f"group {n}: {'; '.join(operation.text() for operation in groups[n])}" for n in sorted(groups))

    def _extern_call(self, operation: Operation) -> None:
        for view in operation.operands:
            self._make(view)
        number = self.new_group(self._begun)
        self.depend(number, operation.operands)
        if operation.is_ordered:
            if self.ordered:
                self._need(number, self.needs[self.ordered[-1]] | 1 << self.ordered[-1])
            self.ordered.append(number)
        if is_collective(operation):
            self._begun = self.needs[number] | 1 << number
        self.group_of[operation] = number
        if isinstance(operation, Conv):
            self._anchor(number, operation)
        else:
            self.extern_calls[number] = operation
        self._used(operation)

    # Dependences

    def new_group(self, needs: int = 0) -> int:
        """Number for another group or call, which comes after these."""
        self.needs.append(needs)
        return len(self.needs) - 1

    def group_that_makes(self, value: Value) -> int | None:
        """Number of the group or call that makes a value; None for the graph's inputs."""
        return None if value.maker is None else self.group_of[value.maker]

    def _before(self, value: Value) -> int:
        number = self.group_that_makes(value)
        return 0 if number is None else self.needs[number] | 1 << number

    def depend(self, number: int, views: list[View]) -> None:
        """Note that a group needs what makes these views."""
        own, bits = 1 << number, 0
        for view in views:
            bits |= self._before(view.value)
        self._need(number, bits & ~own)

    def _need(self, number: int, bits: int) -> None:
        """Note that a group, and all groups that need it, need these."""
        own = 1 << number
        if bits & ~self.needs[number]:
            self.needs[number] |= bits
            for other, needs in enumerate(self.needs):
                if needs & own:
                    self.needs[other] = needs | bits

    def replace(self, number: int, by: int) -> None:
        """Note that group ``by`` took over the operations of group ``number``."""
        old, new = 1 << number, 1 << by
        bits = (self.needs[number] | self.needs[by]) & ~(old | new)
        self.needs[number], self.needs[by] = 0, bits
        for other, needs in enumerate(self.needs):
            if needs & (old | new):
                self.needs[other] = needs & ~old | new | bits

    def copy(self) -> Fusion:
        """Copy of the fusion whose groups and calls can be changed independently of it."""
        other = copy.copy(self)
        other.groups = {number: group.copy() for number, group in self.groups.items()}
        other.group_of, other.extern_calls, other.needs = dict(self.group_of), dict(self.extern_calls), list(self.needs)
        return other

    # Groups

    def _anchor(self, number: int, conv: Conv) -> None:
        """Start a group behind a convolution."""
        layout = result_layout(conv)
        n, c, h, w = layout.sizes
        nhwc = layout.strides[1] == 1 and c > 1 or h * w == 1
        group = FusionGroup(number, IterationSpace(n, c, h, w, nhwc), anchor=conv)
        self._add(group)
        self._made(group, conv.results[0])

    def _add(self, group: FusionGroup) -> None:
        self.groups[group.number] = group
        self._of_size[group.numel] = self._of_size.get(group.numel, 0) | 1 << group.number

    def _made(self, group: FusionGroup, value: Value) -> None:
        """Note that a group makes a value."""
        self.readers.setdefault(value, []).append(group.number)
        if self.left.get(value):
            group.live_results.add(value)

    def _used(self, operation: Operation, group: FusionGroup | None = None) -> None:
        """Note that an operation has been put into this group, or into a call."""
        for view in operation.operands:
            self.left[view.value] -= 1
            if group is not None and not self.left[view.value]:
                group.live_results.discard(view.value)

    def _make(self, view: View) -> None:
        """Put a small operation into a group, as its result is needed in memory."""
        operation = view.value.maker
        if is_small(operation) and operation not in self.group_of:
            self._place(operation)

    def _inputs(self, operation: Operation, most: int) -> tuple[list[tuple[View, IndexMap]], set[Value]]:
        """Views, with index maps, that a group reads to compute an operation.

        Args:
            most: small operations that the group may recompute for it.

        Returns:
            The views, and those of their values that are read element by element in the operation's own order, or
            through maps.
        """
        layout = operation.input.layout if isinstance(operation, OverDims) else operation.results[0].layout
        full_map, is_copy = full_map_of(layout.numel), _is_copy(operation)
        todo = [(operation.input, full_map)] if isinstance(operation, OverDims) else operand_maps(operation)
        with about_cost():
            has_few = layout.numel <= LITTLE and not is_copy
        inputs, full = [], set()
        seen, computed = set(), 0
        while todo:
            view, index_map = todo.pop()
            if (key := (view.value, view.layout, index_map)) in seen:
                continue
            seen.add(key)
            maker = view.value.maker
            is_recomputed = is_small(maker) and (index_map != full_map or maker not in self.group_of)
            if is_recomputed or (has_few and index_map != full_map and is_little(maker)):
                operands = inlined(view, index_map, full_map) if computed < most else None
                if operands is not None and not (is_copy and any(is_strided(index_map) for _, index_map in operands)):
                    computed += 1
                    todo += operands
                    continue
                self._make(view)
            inputs.append((view, index_map))
            if (index_map == full_map and view.is_full) or isinstance(index_map, Access):
                full.add(view.value)
        return inputs, full

    def _place(self, operation: Operation) -> None:
        """Put an element-wise operation or reduction into the best group that can compute it, or into a new one."""
        result = operation.results[0]
        layout = operation.input.layout if isinstance(operation, OverDims) else result.layout
        reductions = {without(layout, operation.over)} if isinstance(operation, OverDims) else set()
        written = result_maps(result.layout) if isinstance(operation, Map) else set()
        for most in (MOST_INLINED, 0):
            inputs, full = self._inputs(operation, most)
            operands = {index_map for _, index_map in inputs} | written
            if find_space(layout.numel, operands, reductions) is not None:
                break
        best, space_of_best, most = None, None, -1
        for number, bytes_shared in sorted(self._candidates(inputs, full).items()):
            group = self.groups[number]
            space = self._space(group, operation, inputs, operands, reductions, layout.numel)
            with about_cost():
                is_better = bytes_shared > most
            if space is not None and is_better:
                best, space_of_best, most = group, space, bytes_shared
        if best is None and is_small(operation):
            best = self._with_rows(operation, inputs) or self._with_channels(operation, inputs)
            space_of_best = best.space if best else None
        if best is None:
            space_of_best = find_space(layout.numel, operands, reductions)
            if space_of_best is None:
                raise ValueError(f"no kernel can compute {operation.text()}")
            number = self.new_group(self._begun)
            best = FusionGroup(number, space_of_best)
            self._add(best)
        best.space = space_of_best
        best.operations.append(operation)
        best.copies |= dict.fromkeys([result], *written) if written else {}
        if layout.numel == best.space.numel:
            best.operands |= operands
            best.reductions |= reductions
            if isinstance(operation, Reduce) and reductions == {best.rows}:
                best.per_row.add(operation)
        elif self._reads_row_results(best, inputs):  # one number per row
            best.per_row.add(operation)
            inputs = [(view, best.rows if index_map else ()) for view, index_map in inputs]
            best.operands |= {index_map for _, index_map in inputs}
        else:  # a channel vector
            along = best.space.channel_map
            best.reductions.add(along)  # so that channels remain channels in any other space of the group
            inputs = [(view, along if index_map else ()) for view, index_map in inputs]
        best.inputs |= {(view.value, view.layout, index_map): view for view, index_map in inputs}
        self.group_of[operation] = best.number
        self.depend(best.number, [view for view, _ in inputs])
        for value in full:
            readers = self.readers.setdefault(value, [])
            if best.number not in readers:
                readers.append(best.number)
        if not isinstance(operation, Reduce):
            self._made(best, result)
        elif self.left.get(result):
            best.live_results.add(result)
        self._used(operation, best)

    def _candidates(self, inputs, full) -> dict[int, int]:
        """Groups that make or read the same tensors, with the bytes that joining each would save."""
        shared: dict[int, int] = {}
        for value, size in {view.value: view.value.bytes for view, _ in inputs if view.value in full}.items():
            for number in self.readers.get(value, ()):
                made = value in self.groups[number].makes
                shared[number] = shared.get(number, 0) + size * (2 if made else 1)
        for view, index_map in inputs:
            number = self.group_that_makes(view.value)
            if number in self.groups and index_map and index_map == self.groups[number].rows:
                shared[number] = shared.get(number, 0) + view.value.bytes
        return shared

    def _space(self, group, operation, inputs, operands, reductions, numel) -> IterationSpace | None:
        """Iteration space of the group with the operation added; None if it can't be added."""
        if group.numel != numel or len(group.operations) >= MOST_OPERATIONS:
            return None
        if len(group.live_results) >= MOST_OUTPUTS:
            return None
        if operation.part == PARTS[1] and any(each.part == PARTS[0] for each in group.members):
            return None  # a backward's operation would store its result long before it is read
        made = group.makes
        reads = {*group.inputs, *((view.value, view.layout, index_map) for view, index_map in inputs)}
        if sum(key[0] not in made for key in reads) > MOST_INPUTS:
            return None
        if not self._are_available(group, inputs, full_map_of(numel)):
            return None
        if not same_kind(group, [operation]) or self._would_wait(group, inputs):
            return None
        operands, reductions = group.operands | operands, group.reductions | reductions
        space = group.space
        if not fits(space, operands, reductions, not group.anchor):
            space = None if group.anchor else find_space(numel, operands, reductions)
        if space is None or not group.supports(space) or has_too_many_strided(space, reads, group.copies.values()):
            return None
        return space

    @about_cost()
    def _would_wait(self, group: FusionGroup, inputs) -> bool:
        """True if joining would make the group wait for a much larger one that its consumers could otherwise join.

        Two small groups are merged afterwards (fusion/horizontal.py), where nothing is lost by it."""
        needed, own = 0, 1 << group.number
        for view, _ in inputs:
            needed |= self._before(view.value)
        needed &= ~(self.needs[group.number] | own)
        return any(needed & groups and numel >= FEW * group.numel for numel, groups in self._of_size.items())

    def _are_available(self, group: FusionGroup, inputs, full_map: IndexMap | None) -> bool:
        """True if no input is known only after the group; its own results may be read element by element."""
        own = 1 << group.number
        for view, index_map in inputs:
            if self.group_that_makes(view.value) == group.number:
                if not group.knows(view, index_map) or (index_map == full_map and not view.is_full):
                    return False
            elif self._before(view.value) & own:
                return False
        return True

    def _reads_row_results(self, group: FusionGroup, inputs) -> bool:
        """True if one of these inputs is a per-row result of the group."""
        return any(view.value.maker in group.per_row for view, _ in inputs)

    def _with_rows(self, operation: Operation, inputs) -> FusionGroup | None:
        """Group whose per-row results the operation reads: it can compute one more number per row."""
        count = operation.results[0].layout.numel
        if not operation.results[0].layout.is_dense or any(
            index_map not in ((), full_map_of(count)) for _, index_map in inputs
        ):
            return None
        numbers = {self.group_of.get(view.value.maker) for view, _ in inputs} & self.groups.keys()
        for group in (self.groups[number] for number in sorted(numbers)):
            if group.rows is None or group.rows[0][1] != count or not self._reads_row_results(group, inputs):
                continue
            read = [(view, group.rows if index_map else ()) for view, index_map in inputs]
            values = {view.value for view, _ in inputs}
            if len(group.live_results) >= MOST_OUTPUTS or len(group.reads | values) > MOST_INPUTS:
                continue
            if same_kind(group, [operation]) and self._are_available(group, read, None):
                return group
        return None

    def _with_channels(self, operation: Operation, inputs) -> FusionGroup | None:
        """Larger group that reads the same channel vectors: it can compute one more."""
        count = operation.results[0].layout.numel
        values = {view.value for view, index_map in inputs if index_map}
        if not isinstance(operation, Map) or not operation.results[0].layout.is_dense:
            return None
        if any(index_map not in ((), ((1, count),)) for _, index_map in inputs) or count < 2:
            return None
        for group in reversed(self.groups.values()):
            if group.space.channels != count or group.numel == count or not values & group.reads:
                continue
            if len(group.live_results) >= MOST_OUTPUTS or len(group.reads | values) > MOST_INPUTS:
                continue
            if same_kind(group, [operation]) and self._are_available(group, inputs, None):
                return group
        return None
