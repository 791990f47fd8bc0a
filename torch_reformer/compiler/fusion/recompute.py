"""Recompute values in the groups that read them where that moves fewer bytes than storing and reading them.

Batch norm's backward, for example, recomputes the activation's gradient, which both its sums and its result need."""

from __future__ import annotations

from ...runtime.sizes import about_cost
from ..ir.graph import Map, Operation, Value
from ..ir.iteration_space import find_space, fits
from ..ir.kernel_limits import MOST_INPUTS, MOST_OPERATIONS
from ..ir.scan import Scan
from .greedy import Fusion
from .group import Computation, FusionGroup, has_too_many_strided, same_kind

MOST = 16  # operations recomputed for one value


def recompute(fusion: Fusion) -> bool:
    """Recompute values where that moves fewer bytes; True if a group has changed."""
    return _Recompute(fusion).run()


class _Recompute:
    def __init__(self, fusion: Fusion):
        self.groups = fusion.groups
        views = [view for operation in fusion.extern_calls.values() for view in operation.operands]
        views += fusion.graph.output_views()
        views += [view for group in self.groups.values() if group.anchor for view in group.anchor.operands]
        self.required = {view.value for view in views}  # in memory, whatever groups recompute
        self.readers: dict[Value, list[FusionGroup]] = {}
        for group in self.groups.values():
            for value in {view.value for view in group.inputs.values()}:
                self.readers.setdefault(value, []).append(group)

    def run(self) -> bool:
        changed = [
            self._consider(group, operation)
            for group in self.groups.values()
            for operation in group.operations
            if isinstance(operation, Map) and operation.results[0].layout.numel == group.numel > 1
        ]
        for group in list(self.groups.values()):
            self._prune(group)
        return any(changed)

    def _prune(self, group: FusionGroup) -> None:
        """Drop operations that nobody needs any more, and the group if none is left."""
        outputs = [operation for operation in group.operations if self._is_stored(group, operation)]
        group.keep_only(outputs, others=set(group.recomputed))
        if not group.members:
            del self.groups[group.number]

    def _consider(self, group: FusionGroup, operation: Operation) -> bool:
        """Recompute an operation of the group in its readers, in the way that saves most; True if any does."""
        value = operation.results[0]
        readers = [reader for reader in self.readers.get(value, ()) if reader is not group]
        if not readers:
            return False
        others = [member for member in group.members if member is not operation]
        stored = {member.results[0] for member in others if self._is_stored(group, member)}
        ways = [group.traced(operation)]  # from the group's inputs, or from results that it stores anyway
        if stored:
            ways.append(group.traced(operation, stored))
        gains = [self._gain(group, operation, readers, way) for way in ways]
        with about_cost():
            best = max(range(len(ways)), key=lambda i: gains[i][0])
        for reader in gains[best][1]:
            self._inline(reader, value, *ways[best])
        return bool(gains[best][1])

    def _gain(
        self, group: FusionGroup, operation: Operation, readers: list[FusionGroup], computation: Computation
    ) -> tuple[int, list[FusionGroup]]:
        """Bytes saved if readers recompute the operation by this computation, and the readers that should."""
        value = operation.results[0]
        if len(computation[0]) > MOST:
            return 0, []
        costs = [(reader, self._cost(reader, value, *computation, group)) for reader in readers]
        if value in self.required:
            with about_cost():
                chosen = [(reader, cost) for reader, cost in costs if cost is not None and cost < value.bytes]
            return sum(value.bytes - cost for _, cost in chosen), [reader for reader, _ in chosen]
        if any(cost is None for _, cost in costs):
            return 0, []
        saved = value.bytes * (1 + len(readers))
        if self._stores_only(group, operation):
            saved += sum(view.value.bytes for view in computation[1].values())
        gain = saved - sum(cost for _, cost in costs)
        with about_cost():
            return gain, readers if gain >= 0 else []

    def _is_stored(self, group: FusionGroup, operation: Operation) -> bool:
        """True if the operation's result is needed outside of its group."""
        value = operation.results[0]
        return value in self.required or any(reader is not group for reader in self.readers.get(value, ()))

    def _stores_only(self, group: FusionGroup, operation: Operation) -> bool:
        """True if the group stores no result but this operation's."""
        return not any(self._is_stored(group, member) for member in group.members if member is not operation)

    def _cost(self, reader: FusionGroup, value: Value, operations, inputs, group: FusionGroup) -> int | None:
        """Further bytes that the reader reads if it recomputes the value; None if it can't."""
        if len(reader.computed) + len(operations) > MOST_OPERATIONS or reader.numel != group.numel:
            return None
        if not same_kind(reader, operations):
            return None
        if not group.per_row.isdisjoint(operations) or any(isinstance(each, Scan) for each in operations):
            return None  # recomputing a row's reductions or scans takes longer than reading the value
        makes = {operation.results[0] for operation in operations}
        if any(key[0] in makes and key[2] != reader.full_map for key in reader.inputs):
            return None  # also read by another index map
        keys, space = reader.inputs.keys() | inputs.keys(), self._space(reader, inputs)
        if len(keys) - 1 > MOST_INPUTS or space is None:
            return None
        if not reader.supports(space) or has_too_many_strided(space, keys):
            return None
        new = {key: view for key, view in inputs.items() if view.value not in reader.reads}
        if any(view.value.maker is not None and view.value.maker in reader.computed for view in new.values()):
            return None
        cost = sum(view.value.bytes for view in {view.value: view for view in new.values()}.values())
        acc = group.anchor.results[0] if group.anchor else None
        if acc is not None and any(view.value is acc for view in inputs.values()):
            if acc not in self.required and not self.readers.get(acc):
                cost += acc.bytes  # the convolution's result is not stored otherwise
        return cost

    @staticmethod
    def _space(reader: FusionGroup, inputs):
        """Iteration space of the reader with these inputs, too; None if there is none."""
        index_maps = {key[2] for key in inputs}
        if fits(reader.space, index_maps, (), not reader.anchor):
            return reader.space
        return None if reader.anchor else find_space(reader.numel, reader.operands | index_maps, reader.reductions)

    def _inline(self, reader: FusionGroup, value: Value, operations, inputs) -> None:
        """Have the reader recompute a value instead of reading it."""
        reader.space = self._space(reader, inputs)
        reader.operands |= {key[2] for key in inputs}
        reader.inputs = {key: view for key, view in reader.inputs.items() if view.value is not value} | inputs
        known = set(reader.computed)
        reader.recomputed += [operation for operation in operations if operation not in known]
        self.readers[value].remove(reader)
        for view in inputs.values():
            readers = self.readers.setdefault(view.value, [])
            if reader not in readers:
                readers.append(reader)
