"""Which operations one kernel computes: greedily, in the graph's order, each with those whose tensors it reads or
shares. What is left over for calls is a group of its own."""

from __future__ import annotations

import copy

from ..ir.graph import Conv, Graph, Map, Operation, Reduce, Value, View
from ..ir.iteration_space import Digits, Space, find_space, fits, operand_digits, result_digits, without
from ..ir.kernel_limits import MOST_INLINED, MOST_INPUTS, MOST_OPERATIONS, MOST_OUTPUTS
from ..ir.stages import blamed
from .group import Region, are_many_placed, copy_of, inlined, is_small, same_kind, whole_of

_FEW = 16  # elements that are reduced to one, at least, for what goes on with it to count as small


class Grouping:
    """Puts the graph's operations into regions and groups of one (calls)."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.regions: dict[int, Region] = {}
        self.group_of: dict[Operation, int] = {}  # operation -> number of its region or call
        self.alone: dict[int, Operation] = {}
        self.random: list[int] = []  # calls that draw random numbers, one after the other
        self.needs: list[int] = []  # of each group, as bits, the groups that come before it
        self.readers: dict[Value, list[int]] = {}  # value -> regions that read or make it whole
        self.left: dict[Value, int] = {}  # value -> uses that have not been placed
        self.place_of = {each: i for i, each in enumerate(graph.operations)}
        for operation in graph.operations:
            for view in operation.operands:
                self.left[view.value] = self.left.get(view.value, 0) + 1
        for view in graph.output_views():
            self.left[view.value] = self.left.get(view.value, 0) + 1
        self._find_of_reductions()

    def _find_of_reductions(self) -> None:
        """Marks what goes on with what is reduced, on at most a few elements for each that was read for it."""
        reduced: dict[Operation, int] = {}  # operation -> elements that were reduced for it
        for operation in self.graph.operations:
            if isinstance(operation, Reduce):
                reduced[operation] = operation.input.elements
            elif isinstance(operation, Map):
                found = [reduced.get(view.value.maker, 0) for view in operation.inputs]
                few = operation.results[0].layout.numel * _FEW <= max(found, default=0)
                operation.of_reductions = few and all(
                    size or view.value.layout.numel <= operation.results[0].layout.numel
                    for size, view in zip(found, operation.inputs, strict=True)
                )
                if operation.of_reductions:
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
                    self._alone(operation)
        for view in self.graph.output_views():
            with blamed("fusion", filter(None, [view.value.maker])):
                self._make(view)
        # What is only written to memory that is there joins those that read the same.
        for operation in writers:
            with blamed("fusion", [operation]):
                self._alone(operation)

    def __str__(self) -> str:
        groups = {n: region.members for n, region in self.regions.items()}
        groups |= {n: [operation] for n, operation in self.alone.items()}
        return "\n".join(f"group {n}: {'; '.join(operation.text() for operation in groups[n])}" for n in sorted(groups))

    def _alone(self, operation: Operation) -> None:
        for view in operation.operands:
            self._make(view)
        group = self.new_group()
        self._depend(group, operation.operands)
        if operation.is_random:
            if self.random:
                self._need(group, self.needs[self.random[-1]] | 1 << self.random[-1])
            self.random.append(group)
        self.group_of[operation] = group
        if isinstance(operation, Conv):
            self._anchor(group, operation)
        else:
            self.alone[group] = operation
        self._used(operation)

    # Dependences

    def new_group(self) -> int:
        self.needs.append(0)
        return len(self.needs) - 1

    def group_that_makes(self, value: Value) -> int | None:
        return None if value.maker is None else self.group_of[value.maker]

    def _before(self, value: Value) -> int:
        group = self.group_that_makes(value)
        return 0 if group is None else self.needs[group] | 1 << group

    def _depend(self, group: int, views: list[View]) -> None:
        own, bits = 1 << group, 0
        for view in views:
            bits |= self._before(view.value)
        self._need(group, bits & ~own)

    def _need(self, group: int, bits: int) -> None:
        own = 1 << group
        if bits & ~self.needs[group]:
            self.needs[group] |= bits
            for other, needs in enumerate(self.needs):
                if needs & own:
                    self.needs[other] = needs | bits

    def replace(self, group: int, by: int) -> None:
        """Puts another group in the place of one that is no more."""
        old, new = 1 << group, 1 << by
        bits = (self.needs[group] | self.needs[by]) & ~(old | new)
        self.needs[group], self.needs[by] = 0, bits
        for other, needs in enumerate(self.needs):
            if needs & (old | new):
                self.needs[other] = needs & ~old | new | bits

    def copy(self) -> Grouping:
        """One that changes without the other."""
        found = copy.copy(self)
        found.regions = {number: copy_of(region) for number, region in self.regions.items()}
        found.group_of, found.alone, found.needs = dict(self.group_of), dict(self.alone), list(self.needs)
        return found

    # Regions

    def _anchor(self, group: int, conv: Conv) -> None:
        layout = conv.results[0].layout
        n, c, h, w = layout.sizes
        nhwc = layout.strides[1] == 1 and c > 1 or h * w == 1
        region = Region(group, Space(n, c, h, w, nhwc), anchor=conv)
        self.regions[group] = region
        self._made(region, conv.results[0])

    def _made(self, region: Region, value: Value) -> None:
        self.readers.setdefault(value, []).append(region.number)
        if self.left.get(value):
            region.open_results.add(value)

    def _used(self, operation: Operation, region: Region | None = None) -> None:
        for view in operation.operands:
            self.left[view.value] -= 1
            if region is not None and not self.left[view.value]:
                region.open_results.discard(view.value)

    def _make(self, view: View) -> None:
        """Has somebody compute a small operation's result that is needed in memory."""
        operation = view.value.maker
        if is_small(operation) and operation not in self.group_of:
            self._place(operation)

    def _leaves(self, operation: Operation, most: int) -> tuple[list[tuple[View, Digits]], set[Value]]:
        """What the region that computes it reads, and how; at most so many small operations are computed there. And
        which values are read as they are: whole and in the order of the operation's own elements."""
        layout = operation.input.layout if isinstance(operation, Reduce) else operation.results[0].layout
        whole = whole_of(layout.numel)
        todo = [(operation.input, whole)] if isinstance(operation, Reduce) else operand_digits(operation)
        leaves, full = [], set()
        seen, computed = set(), 0
        while todo:
            view, digits = todo.pop()
            if (key := (view.value, view.layout, digits)) in seen:
                continue
            seen.add(key)
            maker = view.value.maker
            if is_small(maker) and (digits != whole or maker not in self.group_of):
                inside = inlined(view, digits, whole) if computed < most else None
                if inside is not None:
                    computed += 1
                    todo += inside
                    continue
                self._make(view)
            leaves.append((view, digits))
            if digits == whole and view.is_whole:
                full.add(view.value)
        return leaves, full

    def _place(self, operation: Operation) -> None:
        result = operation.results[0]
        layout = operation.input.layout if isinstance(operation, Reduce) else result.layout
        reductions = {without(layout, operation.over)} if isinstance(operation, Reduce) else set()
        lies = result_digits(result.layout) if isinstance(operation, Map) else set()
        for most in (MOST_INLINED, 0):
            leaves, full = self._leaves(operation, most)
            operands = {digits for _, digits in leaves} | lies
            if find_space(layout.numel, operands, reductions) is not None:
                break
        best, space_of_best, most = None, None, -1
        for number, bytes_shared in sorted(self._candidates(leaves, full).items()):
            region = self.regions[number]
            space = self._joined(region, operation, leaves, operands, reductions, layout.numel)
            if space is not None and bytes_shared > most:
                best, space_of_best, most = region, space, bytes_shared
        if best is None and is_small(operation):
            best = self._with_rows(operation, leaves) or self._with_channels(operation, leaves)
            space_of_best = best.space if best else None
        if best is None:
            space_of_best = find_space(layout.numel, operands, reductions)
            if space_of_best is None:
                raise ValueError(f"no program computes {operation.text()}")
            group = self.new_group()
            best = self.regions[group] = Region(group, space_of_best)
        best.space = space_of_best
        best.operations.append(operation)
        best.copies |= dict.fromkeys([result], *lies) if lies else {}
        if layout.numel == best.space.numel:
            best.operands |= operands
            best.reductions |= reductions
            if isinstance(operation, Reduce) and reductions == {best.rows}:
                best.of_rows.add(operation)
        elif self._is_known_by(best, leaves):  # a number a row besides
            best.of_rows.add(operation)
            leaves = [(view, best.rows if digits else ()) for view, digits in leaves]
            best.operands |= {digits for _, digits in leaves}
        else:  # a vector of channels
            along = best.space.channel_digits
            best.reductions.add(along)  # they stay what they are to the program
            leaves = [(view, along if digits else ()) for view, digits in leaves]
        best.leaves |= {(view.value, view.layout, digits): view for view, digits in leaves}
        self.group_of[operation] = best.number
        self._depend(best.number, [view for view, _ in leaves])
        for value in full:
            readers = self.readers.setdefault(value, [])
            if best.number not in readers:
                readers.append(best.number)
        if isinstance(operation, Map):
            self._made(best, result)
        elif self.left.get(result):
            best.open_results.add(result)
        self._used(operation, best)

    def _candidates(self, leaves, full) -> dict[int, int]:
        """Regions that make or read what it reads whole, and how many bytes they share."""
        shared: dict[int, int] = {}
        for value, size in {view.value: view.value.bytes for view, _ in leaves if view.value in full}.items():
            for number in self.readers.get(value, ()):
                made = value in self.regions[number].makes
                shared[number] = shared.get(number, 0) + size * (2 if made else 1)
        for view, digits in leaves:
            number = self.group_that_makes(view.value)
            if number in self.regions and digits and digits == self.regions[number].rows:
                shared[number] = shared.get(number, 0) + view.value.bytes
        return shared

    def _joined(self, region, operation, leaves, operands, reductions, numel) -> Space | None:
        """The region's space with the operation in it; None if that can't be."""
        if region.numel != numel or len(region.operations) >= MOST_OPERATIONS:
            return None
        if len(region.open_results) >= MOST_OUTPUTS:
            return None
        made = region.makes
        reads = {*region.leaves, *((view.value, view.layout, digits) for view, digits in leaves)}
        if sum(key[0] not in made for key in reads) > MOST_INPUTS or not self._is_free(region, leaves, whole_of(numel)):
            return None
        if not same_kind(region, [operation]) or self._waits_longer(region, leaves):
            return None
        operands, reductions = region.operands | operands, region.reductions | reductions
        space = region.space
        if not fits(space, operands, reductions, not region.anchor):
            space = None if region.anchor else find_space(numel, operands, reductions)
        if space is None or not region.takes(space) or are_many_placed(space, reads, len(region.copies)):
            return None
        return space

    def _waits_longer(self, region: Region, leaves) -> bool:
        """Whether it would come after a far larger region, which what needs this one could else join. Two small ones
        become one afterwards (fusion/horizontal.py), where nothing is lost by it."""
        needed, own = 0, 1 << region.number
        for view, _ in leaves:
            needed |= self._before(view.value)
        needed &= ~(self.needs[region.number] | own)
        return any(needed >> each.number & 1 and each.numel >= _FEW * region.numel for each in self.regions.values())

    def _is_free(self, region: Region, leaves, whole: Digits | None) -> bool:
        """Whether nothing that it reads is known only after the region; what that makes may be read as a whole."""
        own = 1 << region.number
        for view, digits in leaves:
            if self.group_that_makes(view.value) == region.number:
                if not region.knows(view, digits) or (digits == whole and not view.is_whole):
                    return False
            elif self._before(view.value) & own:
                return False
        return True

    def _is_known_by(self, region: Region, leaves) -> bool:
        """Whether the region reduces rows to one of these."""
        return any(view.value.maker in region.of_rows for view, _ in leaves)

    def _with_rows(self, operation: Operation, leaves) -> Region | None:
        """The region that has reduced rows to what it is computed from: it computes one number a row more."""
        count = operation.results[0].layout.numel
        if not operation.results[0].layout.is_dense or any(digits not in ((), whole_of(count)) for _, digits in leaves):
            return None
        for region in self.regions.values():
            if region.rows is None or region.rows[0][1] != count or not self._is_known_by(region, leaves):
                continue
            read = [(view, region.rows if digits else ()) for view, digits in leaves]
            values = {view.value for view, _ in leaves}
            if len(region.open_results) >= MOST_OUTPUTS or len(region.reads | values) > MOST_INPUTS:
                continue
            if same_kind(region, [operation]) and self._is_free(region, read, None):
                return region
        return None

    def _with_channels(self, operation: Operation, leaves) -> Region | None:
        """A region over more elements that reads the same vectors of channels: it computes one more."""
        count = operation.results[0].layout.numel
        values = {view.value for view, digits in leaves if digits}
        if not isinstance(operation, Map) or not operation.results[0].layout.is_dense:
            return None
        if any(digits not in ((), ((1, count),)) for _, digits in leaves) or count < 2:
            return None
        for region in reversed(self.regions.values()):
            if region.space.channels != count or region.numel == count or not values & region.reads:
                continue
            if len(region.open_results) >= MOST_OUTPUTS or len(region.reads | values) > MOST_INPUTS:
                continue
            if same_kind(region, [operation]) and self._is_free(region, leaves, None):
                return region
        return None
