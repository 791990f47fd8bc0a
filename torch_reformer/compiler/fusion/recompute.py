"""Values that are cheaper to compute again than to store and to read: a group that reads what another makes can
compute it itself, of what the other reads. Batch norm's backward does so with the activation's gradient, which its sums
and its result both need."""

from __future__ import annotations

from ..ir.graph import Map, Operation, Value
from ..ir.iteration_space import find_space, fits
from ..ir.kernel_limits import MOST_INPUTS, MOST_OPERATIONS
from .greedy import Fusion
from .group import Computation, FusionGroup, has_too_many_strided

MOST = 16  # operations that are computed again for one value


def recompute(fusion: Fusion) -> bool:
    """Changes the groups where fewer bytes are moved so; says whether it has changed one."""
    return _Recompute(fusion).run()


class _Recompute:
    def __init__(self, fusion: Fusion):
        self.groups = fusion.groups
        others = [view for operation in fusion.extern_calls.values() for view in operation.operands]
        others += fusion.graph.output_views()
        others += [view for group in self.groups.values() if group.anchor for view in group.anchor.operands]
        self.stays = {view.value for view in others}  # needed in memory whatever groups do
        self.readers: dict[Value, list[FusionGroup]] = {}
        for group in self.groups.values():
            for value in {view.value for view in group.inputs.values()}:
                self.readers.setdefault(value, []).append(group)

    def run(self) -> bool:
        found = [
            self._consider(group, operation)
            for group in self.groups.values()
            for operation in group.operations
            if isinstance(operation, Map) and operation.results[0].layout.numel == group.numel > 1
        ]
        for group in list(self.groups.values()):
            self._prune(group)
        return any(found)

    def _prune(self, group: FusionGroup) -> None:
        """Takes away what nobody needs any more."""
        outputs = [each for each in group.operations if self._is_stored(group, each)]
        group.keep_only(outputs, others=set(group.recomputed))
        if not group.members:
            del self.groups[group.number]

    def _consider(self, group: FusionGroup, operation: Operation) -> bool:
        value = operation.results[0]
        readers = [each for each in self.readers.get(value, ()) if each is not group]
        if not readers:
            return False
        others = [each for each in group.members if each is not operation]
        stored = {each.results[0] for each in others if self._is_stored(group, each)}
        ways = [group.traced(operation)]  # of what the group reads, or of what it stores anyway
        if stored:
            ways.append(group.traced(operation, stored))
        found = [self._gain(group, operation, readers, way) for way in ways]
        best = max(range(len(ways)), key=lambda i: found[i][0])
        for each in found[best][1]:
            self._inline(each, value, *ways[best])
        return bool(found[best][1])

    def _gain(
        self, group: FusionGroup, operation: Operation, readers: list[FusionGroup], again: Computation
    ) -> tuple[int, list[FusionGroup]]:
        """Bytes that are spared if some of the readers compute it again so, and which."""
        value = operation.results[0]
        if len(again[0]) > MOST:
            return 0, []
        costs = [(each, self._cost(each, value, *again, group)) for each in readers]
        if value in self.stays:
            chosen = [(each, cost) for each, cost in costs if cost is not None and cost < value.bytes]
            return sum(value.bytes - cost for _, cost in chosen), [each for each, _ in chosen]
        if any(cost is None for _, cost in costs):
            return 0, []
        spared = value.bytes * (1 + len(readers))
        if self._only(group, operation):
            spared += sum(view.value.bytes for view in again[1].values())
        gain = spared - sum(cost for _, cost in costs)
        return gain, readers if gain >= 0 else []

    def _is_stored(self, group: FusionGroup, operation: Operation) -> bool:
        """Whether others than its group need its result."""
        value = operation.results[0]
        return value in self.stays or any(each is not group for each in self.readers.get(value, ()))

    def _only(self, group: FusionGroup, operation: Operation) -> bool:
        """Whether nothing is left of the group without this result."""
        return not any(self._is_stored(group, each) for each in group.members if each is not operation)

    def _cost(self, reader: FusionGroup, value: Value, operations, inputs, group: FusionGroup) -> int | None:
        """Bytes that the reader reads besides; None if it can't."""
        if len(reader.computed) + len(operations) > MOST_OPERATIONS or reader.numel != group.numel:
            return None
        if any(each in group.per_row for each in operations):
            return None  # a row's reductions take longer than to read what follows from them
        if any(view.value is value and key[2] != reader.full_map for key, view in reader.inputs.items()):
            return None  # read in another way, too
        everything, space = reader.inputs.keys() | inputs.keys(), self._space(reader, inputs)
        if len(everything) - 1 > MOST_INPUTS or space is None:
            return None
        if not reader.supports(space) or has_too_many_strided(space, everything):
            return None
        new = {key: view for key, view in inputs.items() if view.value not in reader.reads}
        if any(view.value.maker is not None and view.value.maker in reader.computed for view in new.values()):
            return None
        cost = sum(view.value.bytes for view in {view.value: view for view in new.values()}.values())
        acc = group.anchor.results[0] if group.anchor else None
        if acc is not None and any(view.value is acc for view in inputs.values()):
            if acc not in self.stays and not self.readers.get(acc):
                cost += acc.bytes  # it is not stored otherwise
        return cost

    @staticmethod
    def _space(reader: FusionGroup, inputs):
        index_map = {key[2] for key in inputs}
        if fits(reader.space, index_map, (), not reader.anchor):
            return reader.space
        return None if reader.anchor else find_space(reader.numel, reader.operands | index_map, reader.reductions)

    def _inline(self, reader: FusionGroup, value: Value, operations, inputs) -> None:
        reader.space = self._space(reader, inputs)
        reader.operands |= {key[2] for key in inputs}
        reader.inputs = {key: view for key, view in reader.inputs.items() if view.value is not value} | inputs
        known = {each for each in reader.computed}
        reader.recomputed += [each for each in operations if each not in known]
        self.readers[value].remove(reader)
        for view in inputs.values():
            readers = self.readers.setdefault(view.value, [])
            if reader not in readers:
                readers.append(reader)
