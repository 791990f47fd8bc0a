"""Atoms: the smallest groups that candidates are built from.

An atom is an operation with the operations that only it needs, and small ones computed beside it."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from ...ir.graph import Map, Operation, OverDims, Reduce, Value
from ...ir.index_maps import without
from ...ir.iteration_space import find_space
from ..greedy import Fusion
from ..group import FusionGroup


class NoAtoms(Exception):
    """An atom can't be a kernel by itself, so the graph is not planned by ILP."""


@dataclass
class DisjointSets:
    """Disjoint sets of keys (union-find)."""

    parent: dict[Hashable, Hashable] = field(default_factory=dict)

    def find(self, key: Hashable) -> Hashable:
        """Representative of the set that has ``key``."""
        while (above := self.parent.setdefault(key, key)) != key:
            key = above
        return key

    def unite(self, one: Hashable, other: Hashable) -> None:
        self.parent[self.find(other)] = self.find(one)


class Atoms:
    """Atoms of a fusion in which each operation is in one group.

    groups: the atoms in the graph's order, as groups that read other atoms' results from memory. A convolution is an
    atom without an epilogue.

    Raises:
        NoAtoms: an atom can't be a kernel by itself.
    """

    def __init__(self, fusion: Fusion):
        self.graph, self.place_of = fusion.graph, fusion.place_of
        self._grouped = set(fusion.group_of)
        self._direct: dict[Value, list[Operation]] = {}  # operations that have the value as an operand
        for operation in self.graph.operations:
            for view in operation.operands:
                self._direct.setdefault(view.value, []).append(operation)
        self._outputs = {view.value for view in self.graph.output_views()}
        self._users: dict[Value, tuple[int, bool]] = {}
        self.groups: list[FusionGroup] = []
        for group in fusion.groups.values():
            if group.anchor:
                self.groups.append(FusionGroup(-1, group.space, anchor=group.anchor))
            self.groups += [_atom(group, operations) for operations in self._sets(group)]
        self.groups.sort(key=lambda atom: self.place_of[atom.members[0]])

    def ordered(self, operations: Iterable[Operation]) -> list[Operation]:
        """Operations in the graph's order."""
        return sorted(operations, key=lambda operation: self.place_of[operation])

    def users(self, value: Value) -> tuple[int, bool]:
        """Operations in groups that need a value, as bits by their places, and whether the graph's caller needs it.

        Small operations in no group are recomputed where they are needed (inlining.is_small), so their users count."""
        if (result := self._users.get(value)) is None:
            users, is_output = 0, value in self._outputs
            for operation in self._direct.get(value, ()):
                if operation in self._grouped:
                    users |= 1 << self.place_of[operation]
                else:
                    for further in map(self.users, operation.results):
                        users, is_output = users | further[0], is_output or further[1]
            result = self._users[value] = users, is_output
        return result

    def _sets(self, group: FusionGroup) -> list[list[Operation]]:
        """Operations of a group, divided into atoms."""
        sets, members = DisjointSets(), set(group.operations)
        for operation in group.operations:
            (result,) = operation.results
            if isinstance(operation, Reduce):
                continue
            if operation in group.per_row:  # one number per row, computed from the row's reductions
                for other in group.traced(operation)[0]:
                    if other in group.per_row:
                        sets.unite(other, operation)
            elif result.layout.numel != group.numel:  # a channel vector
                if (other := _beside(group, operation)) is not None:
                    sets.unite(other, operation)
            else:
                users, is_output = self.users(result)
                if users.bit_count() == 1 and not is_output:
                    user = self.graph.operations[users.bit_length() - 1]
                    if user in members:
                        sets.unite(user, operation)
        atoms: dict[Operation, list[Operation]] = {}
        for operation in group.operations:
            atoms.setdefault(sets.find(operation), []).append(operation)
        return list(atoms.values())


def _beside(group: FusionGroup, operation: Operation) -> Operation | None:
    """Full-size operation or reduction of the group, by preference one that shares an operand with ``operation``."""

    def is_full(other: Operation) -> bool:
        return isinstance(other, Reduce) or other.results[0].layout.numel == group.numel

    full = list(filter(is_full, group.operations))
    values = {view.value for view in operation.operands}
    sharing = (other for other in full if any(view.value in values for view in other.operands))
    return next(itertools.chain(sharing, full), None)


def _atom(group: FusionGroup, operations: list[Operation]) -> FusionGroup:
    """Group of these operations of ``group``, which reads the results of its other operations from memory."""
    own = set(operations)
    stored = {operation.results[0] for operation in group.members if operation not in own}
    computed, inputs = dict.fromkeys(own), {}
    for operation in operations:
        traced, read = group.traced(operation, stored)
        computed |= dict.fromkeys(traced)
        inputs |= read
    if computed.keys() != own:
        raise NoAtoms
    results = {operation.results[0] for operation in operations}
    copies = {value: index_map for value, index_map in group.copies.items() if value in results}
    operands = {*(index_map for _, _, index_map in inputs), *copies.values()}
    over_dims = [operation for operation in operations if isinstance(operation, OverDims)]
    reduced = {operation: without(operation.input.layout, operation.over) for operation in over_dims}
    reductions = set(reduced.values())
    space = group.space
    if any(_is_channel_vector(group, operation) for operation in operations):
        reductions.add(space.channel_map)
    if group.anchor or space.has_heights:
        space = find_space(group.numel, operands, reductions)
        if space is None or (group.anchor and not group.supports(space)):
            raise NoAtoms
    atom = FusionGroup(-1, space, operations=operations, inputs=inputs, copies=copies)
    atom.operands, atom.reductions = operands, reductions
    if group.anchor:
        atom.per_row = {operation for operation, index_map in reduced.items() if index_map == atom.rows}
    else:
        atom.per_row = group.per_row & own
    if atom.per_row and atom.rows is None:
        raise NoAtoms
    return atom


def _is_channel_vector(group: FusionGroup, operation: Operation) -> bool:
    is_smaller = isinstance(operation, Map) and operation.results[0].layout.numel != group.numel
    return is_smaller and operation not in group.per_row
