"""The smallest parts that a planner makes regions of: an operation, what only it needs, and numbers beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...ir.graph import Map, Operation, Reduce, Value
from ...ir.iteration_space import find_space, without
from ..greedy import Grouping
from ..group import Region


class NoPieces(Exception):
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


class Pieces:
    """Regions of their own, which read from memory what other pieces make, and convolutions without anything behind
    them; in the graph's order. The grouping is one in which each operation is in one region."""

    def __init__(self, grouping: Grouping):
        self.graph, self.place_of = grouping.graph, grouping.place_of
        self._placed = set(grouping.group_of)
        self._direct: dict[Value, list[Operation]] = {}
        for operation in self.graph.operations:
            for view in operation.operands:
                self._direct.setdefault(view.value, []).append(operation)
        self._given = {view.value for view in self.graph.output_views()}
        self._users: dict[Value, tuple[int, bool]] = {}
        self.regions: list[Region] = []
        for region in grouping.regions.values():
            if region.anchor:
                self.regions.append(Region(-1, region.space, anchor=region.anchor))
            self.regions += [_piece(region, each) for each in self._sets(region)]
        self.regions.sort(key=lambda each: self.place_of[each.members[0]])

    def ordered(self, operations: Iterable[Operation]) -> list[Operation]:
        return sorted(operations, key=lambda each: self.place_of[each])

    def users(self, value: Value) -> tuple[int, bool]:
        """The operations that need a value in the end, by their places as bits, and whether the graph gives it. What is
        small is computed where it is needed (regions.is_small)."""
        if (found := self._users.get(value)) is None:
            users, is_given = 0, value in self._given
            for operation in self._direct.get(value, ()):
                if operation in self._placed:
                    users |= 1 << self.place_of[operation]
                else:
                    for result in operation.results:
                        further, given = self.users(result)
                        users, is_given = users | further, is_given or given
            found = self._users[value] = users, is_given
        return found

    def _sets(self, region: Region) -> list[list[Operation]]:
        sets, members = Sets(), {each: each for each in region.operations}
        for operation in region.operations:
            (result,) = operation.results
            if isinstance(operation, Reduce):
                continue
            if operation in region.of_rows:  # a number a row, of a row's reductions
                for each in region.traced(operation)[0]:
                    if each in region.of_rows:
                        sets.unite(each, operation)
            elif result.layout.numel != region.numel:  # a vector of channels beside
                if (other := _beside(region, operation)) is not None:
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


def _beside(region: Region, operation: Operation) -> Operation | None:
    """One of the region's elements, by preference one that reads what the operation reads."""
    full = [
        each for each in region.operations if isinstance(each, Reduce) or each.results[0].layout.numel == region.numel
    ]
    values = {view.value for view in operation.operands}
    reading = [each for each in full if any(view.value in values for view in each.operands)]
    return next(iter([*reading, *full]), None)


def _piece(region: Region, operations: list[Operation]) -> Region:
    own = {each for each in operations}
    stored = {each.results[0] for each in region.members if each not in own}
    computed, leaves = dict.fromkeys(own), {}
    for operation in operations:
        found, read = region.traced(operation, stored)
        computed |= dict.fromkeys(found)
        leaves |= read
    if computed.keys() != own:
        raise NoPieces
    results = {each.results[0] for each in operations}
    copies = {value: digits for value, digits in region.copies.items() if value in results}
    digits = {*(digits for _, _, digits in leaves), *copies.values()}
    reduced = {each: without(each.input.layout, each.over) for each in operations if isinstance(each, Reduce)}
    reductions = set(reduced.values())
    space = region.space
    if any(_is_of_channels(region, each) for each in operations):
        reductions.add(space.channel_digits)
    if region.anchor:
        space = find_space(region.numel, digits, reductions)
        if space is None or not region.takes(space):
            raise NoPieces
    piece = Region(-1, space, operations=operations, leaves=leaves, copies=copies)
    piece.operands, piece.reductions = digits, reductions
    if region.anchor:
        piece.of_rows = {key for key, each in reduced.items() if each == piece.rows}
    else:
        piece.of_rows = region.of_rows & own
    if piece.of_rows and piece.rows is None:
        raise NoPieces
    return piece


def _is_of_channels(region: Region, operation: Operation) -> bool:
    is_beside = isinstance(operation, Map) and operation.results[0].layout.numel != region.numel
    return is_beside and operation not in region.of_rows
