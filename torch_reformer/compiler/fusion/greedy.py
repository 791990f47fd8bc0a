"""Which operations one kernel computes: greedily, in the graph's order, each with those whose tensors it reads or
shares. What is left over for calls is a group of its own."""

from __future__ import annotations

import copy

from ..ir.graph import Conv, Graph, Map, Operation, Reduce, Value, View
from ..ir.iteration_space import IndexMap, IterationSpace, find_space, fits, operand_maps, result_maps, without
from ..ir.kernel_limits import MOST_INLINED, MOST_INPUTS, MOST_OPERATIONS, MOST_OUTPUTS
from ..ir.stages import blamed
from .group import FusionGroup, full_map_of, has_too_many_strided, inlined, is_small, same_kind

_FEW = 16  # elements that are reduced to one, at least, for what goes on with it to count as small


class Fusion:
    """Puts the graph's operations into groups and groups of one (calls)."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.groups: dict[int, FusionGroup] = {}
        self.group_of: dict[Operation, int] = {}  # operation -> number of its group or call
        self.extern_calls: dict[int, Operation] = {}
        self.random: list[int] = []  # calls that draw random numbers, one after the other
        self.needs: list[int] = []  # of each group, as bits, the groups that come before it
        self.readers: dict[Value, list[int]] = {}  # value -> groups that read or make it whole
        self.left: dict[Value, int] = {}  # value -> uses that have not been placed
        self.place_of = {each: i for i, each in enumerate(graph.operations)}
        for operation in graph.operations:
            for view in operation.operands:
                self.left[view.value] = self.left.get(view.value, 0) + 1
        for view in graph.output_views():
            self.left[view.value] = self.left.get(view.value, 0) + 1
        self._mark_after_reductions()

    def _mark_after_reductions(self) -> None:
        """Marks what goes on with what is reduced, on at most a few elements for each that was read for it."""
        reduced: dict[Operation, int] = {}  # operation -> elements that were reduced for it
        for operation in self.graph.operations:
            if isinstance(operation, Reduce):
                reduced[operation] = operation.input.elements
            elif isinstance(operation, Map):
                found = [reduced.get(view.value.maker, 0) for view in operation.inputs]
                few = operation.results[0].layout.numel * _FEW <= max(found, default=0)
                operation.after_reduction = few and all(
                    size or view.value.layout.numel <= operation.results[0].layout.numel
                    for size, view in zip(found, operation.inputs, strict=True)
                )
                if operation.after_reduction:
                    reduced[operation] = max(found)

    def run(self) -> None:
        writers = [each for each in self.graph.operations if each.writes]
        for operation in self.graph.operations:
            if is_small(operation) or operation.writes:
                continue
            with blamed("fusion", [operation]):
                if isinstance(operation, (Map, Reduce)):
                    self._place(operation)
                else:
                    self._extern_call(operation)
        for view in self.graph.output_views():
            with blamed("fusion", filter(None, [view.value.maker])):
                self._make(view)
        # What is only written to memory that is there joins those that read the same.
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
        number = self.new_group()
        self._depend(number, operation.operands)
        if operation.is_random:
            if self.random:
                self._need(number, self.needs[self.random[-1]] | 1 << self.random[-1])
            self.random.append(number)
        self.group_of[operation] = number
        if isinstance(operation, Conv):
            self._anchor(number, operation)
        else:
            self.extern_calls[number] = operation
        self._used(operation)

    # Dependences

    def new_group(self) -> int:
        self.needs.append(0)
        return len(self.needs) - 1

    def group_that_makes(self, value: Value) -> int | None:
        return None if value.maker is None else self.group_of[value.maker]

    def _before(self, value: Value) -> int:
        number = self.group_that_makes(value)
        return 0 if number is None else self.needs[number] | 1 << number

    def _depend(self, number: int, views: list[View]) -> None:
        own, bits = 1 << number, 0
        for view in views:
            bits |= self._before(view.value)
        self._need(number, bits & ~own)

    def _need(self, number: int, bits: int) -> None:
        own = 1 << number
        if bits & ~self.needs[number]:
            self.needs[number] |= bits
            for other, needs in enumerate(self.needs):
                if needs & own:
                    self.needs[other] = needs | bits

    def replace(self, number: int, by: int) -> None:
        """Puts another group in the place of one that is no more."""
        old, new = 1 << number, 1 << by
        bits = (self.needs[number] | self.needs[by]) & ~(old | new)
        self.needs[number], self.needs[by] = 0, bits
        for other, needs in enumerate(self.needs):
            if needs & (old | new):
                self.needs[other] = needs & ~old | new | bits

    def copy(self) -> Fusion:
        """One that changes without the other."""
        found = copy.copy(self)
        found.groups = {number: group.copy() for number, group in self.groups.items()}
        found.group_of, found.extern_calls, found.needs = dict(self.group_of), dict(self.extern_calls), list(self.needs)
        return found

    # Groups

    def _anchor(self, number: int, conv: Conv) -> None:
        layout = conv.results[0].layout
        n, c, h, w = layout.sizes
        nhwc = layout.strides[1] == 1 and c > 1 or h * w == 1
        group = FusionGroup(number, IterationSpace(n, c, h, w, nhwc), anchor=conv)
        self.groups[number] = group
        self._made(group, conv.results[0])

    def _made(self, group: FusionGroup, value: Value) -> None:
        self.readers.setdefault(value, []).append(group.number)
        if self.left.get(value):
            group.live_results.add(value)

    def _used(self, operation: Operation, group: FusionGroup | None = None) -> None:
        for view in operation.operands:
            self.left[view.value] -= 1
            if group is not None and not self.left[view.value]:
                group.live_results.discard(view.value)

    def _make(self, view: View) -> None:
        """Has somebody compute a small operation's result that is needed in memory."""
        operation = view.value.maker
        if is_small(operation) and operation not in self.group_of:
            self._place(operation)

    def _leaves(self, operation: Operation, most: int) -> tuple[list[tuple[View, IndexMap]], set[Value]]:
        """What the group that computes it reads, and how; at most so many small operations are computed there. And
        which values are read as they are: whole and in the order of the operation's own elements."""
        layout = operation.input.layout if isinstance(operation, Reduce) else operation.results[0].layout
        full_map = full_map_of(layout.numel)
        todo = [(operation.input, full_map)] if isinstance(operation, Reduce) else operand_maps(operation)
        inputs, full = [], set()
        seen, computed = set(), 0
        while todo:
            view, index_map = todo.pop()
            if (key := (view.value, view.layout, index_map)) in seen:
                continue
            seen.add(key)
            maker = view.value.maker
            if is_small(maker) and (index_map != full_map or maker not in self.group_of):
                inside = inlined(view, index_map, full_map) if computed < most else None
                if inside is not None:
                    computed += 1
                    todo += inside
                    continue
                self._make(view)
            inputs.append((view, index_map))
            if index_map == full_map and view.is_full:
                full.add(view.value)
        return inputs, full

    def _place(self, operation: Operation) -> None:
        result = operation.results[0]
        layout = operation.input.layout if isinstance(operation, Reduce) else result.layout
        reductions = {without(layout, operation.over)} if isinstance(operation, Reduce) else set()
        lies = result_maps(result.layout) if isinstance(operation, Map) else set()
        for most in (MOST_INLINED, 0):
            inputs, full = self._leaves(operation, most)
            operands = {index_map for _, index_map in inputs} | lies
            if find_space(layout.numel, operands, reductions) is not None:
                break
        best, space_of_best, most = None, None, -1
        for number, bytes_shared in sorted(self._candidates(inputs, full).items()):
            group = self.groups[number]
            space = self._joined(group, operation, inputs, operands, reductions, layout.numel)
            if space is not None and bytes_shared > most:
                best, space_of_best, most = group, space, bytes_shared
        if best is None and is_small(operation):
            best = self._with_rows(operation, inputs) or self._with_channels(operation, inputs)
            space_of_best = best.space if best else None
        if best is None:
            space_of_best = find_space(layout.numel, operands, reductions)
            if space_of_best is None:
                raise ValueError(f"no program computes {operation.text()}")
            number = self.new_group()
            best = self.groups[number] = FusionGroup(number, space_of_best)
        best.space = space_of_best
        best.operations.append(operation)
        best.copies |= dict.fromkeys([result], *lies) if lies else {}
        if layout.numel == best.space.numel:
            best.operands |= operands
            best.reductions |= reductions
            if isinstance(operation, Reduce) and reductions == {best.rows}:
                best.per_row.add(operation)
        elif self._is_known_by(best, inputs):  # a number a row besides
            best.per_row.add(operation)
            inputs = [(view, best.rows if index_map else ()) for view, index_map in inputs]
            best.operands |= {index_map for _, index_map in inputs}
        else:  # a vector of channels
            along = best.space.channel_map
            best.reductions.add(along)  # they stay what they are to the program
            inputs = [(view, along if index_map else ()) for view, index_map in inputs]
        best.inputs |= {(view.value, view.layout, index_map): view for view, index_map in inputs}
        self.group_of[operation] = best.number
        self._depend(best.number, [view for view, _ in inputs])
        for value in full:
            readers = self.readers.setdefault(value, [])
            if best.number not in readers:
                readers.append(best.number)
        if isinstance(operation, Map):
            self._made(best, result)
        elif self.left.get(result):
            best.live_results.add(result)
        self._used(operation, best)

    def _candidates(self, inputs, full) -> dict[int, int]:
        """Groups that make or read what it reads whole, and how many bytes they share."""
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

    def _joined(self, group, operation, inputs, operands, reductions, numel) -> IterationSpace | None:
        """The group's space with the operation in it; None if that can't be."""
        if group.numel != numel or len(group.operations) >= MOST_OPERATIONS:
            return None
        if len(group.live_results) >= MOST_OUTPUTS:
            return None
        made = group.makes
        reads = {*group.inputs, *((view.value, view.layout, index_map) for view, index_map in inputs)}
        if sum(key[0] not in made for key in reads) > MOST_INPUTS or not self._is_free(
            group, inputs, full_map_of(numel)
        ):
            return None
        if not same_kind(group, [operation]) or self._waits_longer(group, inputs):
            return None
        operands, reductions = group.operands | operands, group.reductions | reductions
        space = group.space
        if not fits(space, operands, reductions, not group.anchor):
            space = None if group.anchor else find_space(numel, operands, reductions)
        if space is None or not group.supports(space) or has_too_many_strided(space, reads, len(group.copies)):
            return None
        return space

    def _waits_longer(self, group: FusionGroup, inputs) -> bool:
        """Whether it would come after a far larger group, which what needs this one could else join. Two small ones
        become one afterwards (fusion/horizontal.py), where nothing is lost by it."""
        needed, own = 0, 1 << group.number
        for view, _ in inputs:
            needed |= self._before(view.value)
        needed &= ~(self.needs[group.number] | own)
        return any(needed >> each.number & 1 and each.numel >= _FEW * group.numel for each in self.groups.values())

    def _is_free(self, group: FusionGroup, inputs, full_map: IndexMap | None) -> bool:
        """Whether nothing that it reads is known only after the group; what that makes may be read as a whole."""
        own = 1 << group.number
        for view, index_map in inputs:
            if self.group_that_makes(view.value) == group.number:
                if not group.knows(view, index_map) or (index_map == full_map and not view.is_full):
                    return False
            elif self._before(view.value) & own:
                return False
        return True

    def _is_known_by(self, group: FusionGroup, inputs) -> bool:
        """Whether the group reduces rows to one of these."""
        return any(view.value.maker in group.per_row for view, _ in inputs)

    def _with_rows(self, operation: Operation, inputs) -> FusionGroup | None:
        """The group that has reduced rows to what it is computed from: it computes one number a row more."""
        count = operation.results[0].layout.numel
        if not operation.results[0].layout.is_dense or any(
            index_map not in ((), full_map_of(count)) for _, index_map in inputs
        ):
            return None
        for group in self.groups.values():
            if group.rows is None or group.rows[0][1] != count or not self._is_known_by(group, inputs):
                continue
            read = [(view, group.rows if index_map else ()) for view, index_map in inputs]
            values = {view.value for view, _ in inputs}
            if len(group.live_results) >= MOST_OUTPUTS or len(group.reads | values) > MOST_INPUTS:
                continue
            if same_kind(group, [operation]) and self._is_free(group, read, None):
                return group
        return None

    def _with_channels(self, operation: Operation, inputs) -> FusionGroup | None:
        """A group over more elements that reads the same vectors of channels: it computes one more."""
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
            if same_kind(group, [operation]) and self._is_free(group, inputs, None):
                return group
        return None
