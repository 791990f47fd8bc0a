"""The smallest parts that a planner makes groups of: an operation, what only it needs, and numbers beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...ir.graph import Map, Operation, Reduce, Value
from ...ir.iteration_space import find_space, without
from ..greedy import Fusion
from ..group import FusionGroup


class NoAtoms(Exception):
    """No kernel computes an operation on its own."""


@dataclass
class Sets:
    """Which things belong to one set."""

    parent: dict[int, int] = field(default_factory=dict)

    def find(self, key: int) -> int:
        while (above := self.parent.setdefault(key, key)) != key:
            key = above
        return key

    def unite(self, one: int, other: int) -> None:
        self.parent[self.find(other)] = self.find(one)


class Atoms:
    """Groups of their own, which read from memory what other atoms make, and convolutions without anything behind
    them; in the graph's order. The fusion is one in which each operation is in one group."""

    def __init__(self, fusion: Fusion):
        self.graph, self.place_of = fusion.graph, fusion.place_of
        self._strided = set(fusion.group_of)
        self._direct: dict[Value, list[Operation]] = {}
        for operation in self.graph.operations:
            for view in operation.operands:
                self._direct.setdefault(view.value, []).append(operation)
        self._given = {view.value for view in self.graph.output_views()}
        self._users: dict[Value, tuple[int, bool]] = {}
        self.groups: list[FusionGroup] = []
        for group in fusion.groups.values():
            if group.anchor:
                self.groups.append(FusionGroup(-1, group.space, anchor=group.anchor))
            self.groups += [_atom(group, each) for each in self._sets(group)]
        self.groups.sort(key=lambda each: self.place_of[each.members[0]])

    def ordered(self, operations: Iterable[Operation]) -> list[Operation]:
        return sorted(operations, key=lambda each: self.place_of[each])

    def users(self, value: Value) -> tuple[int, bool]:
        """The operations that need a value in the end, by their places as bits, and whether the graph gives it. What is
        small is computed where it is needed (groups.is_small)."""
        if (found := self._users.get(value)) is None:
            users, is_given = 0, value in self._given
            for operation in self._direct.get(value, ()):
                if operation in self._strided:
                    users |= 1 << self.place_of[operation]
                else:
                    for result in operation.results:
                        further, given = self.users(result)
                        users, is_given = users | further, is_given or given
            found = self._users[value] = users, is_given
        return found

    def _sets(self, group: FusionGroup) -> list[list[Operation]]:
        sets, members = Sets(), {each: each for each in group.operations}
        for operation in group.operations:
            (result,) = operation.results
            if isinstance(operation, Reduce):
                continue
            if operation in group.per_row:  # a number a row, of a row's reductions
                for each in group.traced(operation)[0]:
                    if each in group.per_row:
                        sets.unite(each, operation)
            elif result.layout.numel != group.numel:  # a vector of channels beside
                if (other := _beside(group, operation)) is not None:
                    sets.unite(other, operation)
            else:
                users, is_given = self.users(result)
                if users.bit_count() == 1 and not is_given:
                    user = self.graph.operations[users.bit_length() - 1]
                    if user in members:
                        sets.unite(user, operation)
        found: dict[int, list[Operation]] = {}
        for key, operation in members.items():
            found.setdefault(sets.find(key), []).append(operation)
        return list(found.values())


def _beside(group: FusionGroup, operation: Operation) -> Operation | None:
    """One of the group's elements, by preference one that reads what the operation reads."""
    full = [
        each for each in group.operations if isinstance(each, Reduce) or each.results[0].layout.numel == group.numel
    ]
    values = {view.value for view in operation.operands}
    reading = [each for each in full if any(view.value in values for view in each.operands)]
    return next(iter([*reading, *full]), None)


def _atom(group: FusionGroup, operations: list[Operation]) -> FusionGroup:
    own = {each for each in operations}
    stored = {each.results[0] for each in group.members if each not in own}
    computed, inputs = dict.fromkeys(own), {}
    for operation in operations:
        found, read = group.traced(operation, stored)
        computed |= dict.fromkeys(found)
        inputs |= read
    if computed.keys() != own:
        raise NoAtoms
    results = {each.results[0] for each in operations}
    copies = {value: index_map for value, index_map in group.copies.items() if value in results}
    index_map = {*(index_map for _, _, index_map in inputs), *copies.values()}
    reduced = {each: without(each.input.layout, each.over) for each in operations if isinstance(each, Reduce)}
    reductions = set(reduced.values())
    space = group.space
    if any(_is_of_channels(group, each) for each in operations):
        reductions.add(space.channel_map)
    if group.anchor:
        space = find_space(group.numel, index_map, reductions)
        if space is None or not group.supports(space):
            raise NoAtoms
    atom = FusionGroup(-1, space, operations=operations, inputs=inputs, copies=copies)
    atom.operands, atom.reductions = index_map, reductions
    if group.anchor:
        atom.per_row = {key for key, each in reduced.items() if each == atom.rows}
    else:
        atom.per_row = group.per_row & own
    if atom.per_row and atom.rows is None:
        raise NoAtoms
    return atom


def _is_of_channels(group: FusionGroup, operation: Operation) -> bool:
    is_beside = isinstance(operation, Map) and operation.results[0].layout.numel != group.numel
    return is_beside and operation not in group.per_row
