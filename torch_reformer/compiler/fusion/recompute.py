"""Values that are cheaper to compute again than to store and to read: a region that reads what another makes can
compute it itself, of what the other reads. Batch norm's backward does so with the activation's gradient, which its sums
and its result both need."""

from __future__ import annotations

from ..ir.graph import Map, Operation, Value
from ..ir.iteration_space import find_space, fits
from ..ir.kernel_limits import MOST_INPUTS, MOST_OPERATIONS
from .greedy import Grouping
from .group import Computation, Region, are_many_placed

MOST = 16  # operations that are computed again for one value


def recompute(grouping: Grouping) -> bool:
    """Changes the regions where fewer bytes are moved so; says whether it has changed one."""
    return _Recompute(grouping).run()


class _Recompute:
    def __init__(self, grouping: Grouping):
        self.regions = grouping.regions
        others = [view for operation in grouping.alone.values() for view in operation.operands]
        others += grouping.graph.output_views()
        others += [view for region in self.regions.values() if region.anchor for view in region.anchor.operands]
        self.stays = {view.value for view in others}  # needed in memory whatever regions do
        self.readers: dict[Value, list[Region]] = {}
        for region in self.regions.values():
            for value in {view.value for view in region.leaves.values()}:
                self.readers.setdefault(value, []).append(region)

    def run(self) -> bool:
        found = [
            self._consider(region, operation)
            for region in self.regions.values()
            for operation in region.operations
            if isinstance(operation, Map) and operation.results[0].layout.numel == region.numel > 1
        ]
        for region in list(self.regions.values()):
            self._prune(region)
        return any(found)

    def _prune(self, region: Region) -> None:
        """Takes away what nobody needs any more."""
        needed, leaves = set(), {}
        for operation in region.operations:
            if self._is_stored(region, operation):
                operations, read = region.traced(operation)
                needed |= set((operations))
                leaves |= read
        region.operations = [each for each in region.operations if each in needed]
        region.recomputed = [each for each in region.recomputed if each in needed]
        region.leaves = leaves
        region.copies = {value: digits for value, digits in region.copies.items() if value in region.makes}
        region.operands = {*(digits for _, _, digits in leaves), *region.copies.values()}
        if not region.members:
            del self.regions[region.number]

    def _consider(self, region: Region, operation: Operation) -> bool:
        value = operation.results[0]
        readers = [each for each in self.readers.get(value, ()) if each is not region]
        if not readers:
            return False
        others = [each for each in region.members if each is not operation]
        stored = {each.results[0] for each in others if self._is_stored(region, each)}
        ways = [region.traced(operation)]  # of what the region reads, or of what it stores anyway
        if stored:
            ways.append(region.traced(operation, stored))
        found = [self._gain(region, operation, readers, way) for way in ways]
        best = max(range(len(ways)), key=lambda i: found[i][0])
        for each in found[best][1]:
            self._inline(each, value, *ways[best])
        return bool(found[best][1])

    def _gain(
        self, region: Region, operation: Operation, readers: list[Region], again: Computation
    ) -> tuple[int, list[Region]]:
        """Bytes that are spared if some of the readers compute it again so, and which."""
        value = operation.results[0]
        if len(again[0]) > MOST:
            return 0, []
        costs = [(each, self._cost(each, value, *again, region)) for each in readers]
        if value in self.stays:
            chosen = [(each, cost) for each, cost in costs if cost is not None and cost < value.bytes]
            return sum(value.bytes - cost for _, cost in chosen), [each for each, _ in chosen]
        if any(cost is None for _, cost in costs):
            return 0, []
        spared = value.bytes * (1 + len(readers))
        if self._only(region, operation):
            spared += sum(view.value.bytes for view in again[1].values())
        gain = spared - sum(cost for _, cost in costs)
        return gain, readers if gain >= 0 else []

    def _is_stored(self, region: Region, operation: Operation) -> bool:
        """Whether others than its region need its result."""
        value = operation.results[0]
        return value in self.stays or any(each is not region for each in self.readers.get(value, ()))

    def _only(self, region: Region, operation: Operation) -> bool:
        """Whether nothing is left of the region without this result."""
        return not any(self._is_stored(region, each) for each in region.members if each is not operation)

    def _cost(self, reader: Region, value: Value, operations, leaves, region: Region) -> int | None:
        """Bytes that the reader reads besides; None if it can't."""
        if len(reader.computed) + len(operations) > MOST_OPERATIONS or reader.numel != region.numel:
            return None
        if any(each in region.of_rows for each in operations):
            return None  # a row's reductions take longer than to read what follows from them
        if any(view.value is value and key[2] != reader.whole for key, view in reader.leaves.items()):
            return None  # read in another way, too
        everything, space = reader.leaves.keys() | leaves.keys(), self._space(reader, leaves)
        if len(everything) - 1 > MOST_INPUTS or space is None:
            return None
        if not reader.takes(space) or are_many_placed(space, everything):
            return None
        new = {key: view for key, view in leaves.items() if view.value not in reader.reads}
        if any(view.value.maker is not None and view.value.maker in reader.computed for view in new.values()):
            return None
        cost = sum(view.value.bytes for view in {view.value: view for view in new.values()}.values())
        acc = region.anchor.results[0] if region.anchor else None
        if acc is not None and any(view.value is acc for view in leaves.values()):
            if acc not in self.stays and not self.readers.get(acc):
                cost += acc.bytes  # it is not stored otherwise
        return cost

    @staticmethod
    def _space(reader: Region, leaves):
        digits = {key[2] for key in leaves}
        if fits(reader.space, digits, (), not reader.anchor):
            return reader.space
        return None if reader.anchor else find_space(reader.numel, reader.operands | digits, reader.reductions)

    def _inline(self, reader: Region, value: Value, operations, leaves) -> None:
        reader.space = self._space(reader, leaves)
        reader.operands |= {key[2] for key in leaves}
        reader.leaves = {key: view for key, view in reader.leaves.items() if view.value is not value} | leaves
        known = {each for each in reader.computed}
        reader.recomputed += [each for each in operations if each not in known]
        self.readers[value].remove(reader)
        for view in leaves.values():
            readers = self.readers.setdefault(view.value, [])
            if reader not in readers:
                readers.append(reader)
