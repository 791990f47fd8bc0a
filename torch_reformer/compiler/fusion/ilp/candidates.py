"""Regions that a plan may be made of: grown from the pieces of a graph, piece by piece, those that spare most bytes
first, by the rules of fusion/horizontal.py. They overlap: what several of them compute, and none stores, is computed again."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from ...ir.graph import Reduce, Value
from ...ir.kernel_limits import MOST_OUTPUTS
from ..group import Region, copy_of
from ..horizontal import common_space, join_parts, needs_all_of
from ..schedule import reads_of_region
from .atoms import Pieces

BEAM, MOST_PIECES = 3, 6  # of the regions that grow from a piece
MOST = 10000  # of a graph's: with so many, components that come later stay as the greedy plan has them
_MOST_READERS = 8  # of one tensor that are looked at


@dataclass(eq=False)
class Candidate:
    """operations, before, once: places in the graph, as bits: what it computes, what is done before, and what no other
    region may compute. reads: the bytes of the values that it reads. provides: what it can store. shared: values
    that it reads element by element, or makes so. opened: the bytes of what it makes and others need. parts: the pieces
    and regions that it grew from, by their operations. alone: what these cost."""

    region: Region
    operations: int
    before: int
    once: int
    reads: dict[Value, int]
    provides: tuple[Value, ...]
    shared: set[Value]
    opened: int
    kind: tuple
    parts: tuple[int, ...] = ()
    alone: float = 0.0

    @property
    def provided(self) -> int:
        """What it can store, by places as bits."""
        return self.operations & ~self.before

    def cost(self, launch: float) -> float:
        return sum(self.reads.values()) + (0 if self.region.anchor else launch)


class Candidates:
    """launch: the bytes that take as long as a kernel's start."""

    def __init__(self, pieces: Pieces, launch: float):
        self.pieces, self.launch = pieces, launch
        self.found: dict[int, Candidate | None] = {}  # by operations
        self.before = _before(pieces)

    def of(self, region: Region) -> Candidate | None:
        """The candidate that a region is."""
        own = copy.copy(region)
        own.operations, own.recomputed = self.pieces.ordered((*region.recomputed, *region.operations)), []
        if (candidate := self._made(own)) is not None:
            candidate.parts = (candidate.operations,)
            candidate.alone = candidate.cost(self.launch) + candidate.opened
            self.found.setdefault(candidate.operations, candidate)
        return candidate

    def grow(self, pieces: list[Candidate], regions: list[Candidate]) -> list[Candidate]:
        """What these pieces are if more and more of them are one, and regions with one piece more."""
        of_value: dict[Value, list[Candidate]] = {}
        for piece in pieces:
            for value in sorted(piece.shared, key=lambda value: (self.before.get(value, 0), value.number)):
                of_value.setdefault(value, []).append(piece)
        found = {each.operations: each for each in (*pieces, *regions)}
        for region in regions:
            found |= self._with_one_more(region, of_value)
        for piece in pieces:
            layer = [piece]
            for _ in range(MOST_PIECES - 1):
                following: dict[int, Candidate] = {}
                for candidate in layer:
                    following |= self._with_one_more(candidate, of_value)
                found |= following
                layer = sorted(following.values(), key=lambda each: (-self._spared(each), each.operations))[:BEAM]
        greedy = {each.operations for each in regions}
        return [each for key, each in sorted(found.items()) if key in greedy or self._is_of_use(each)]

    def _spared(self, candidate: Candidate) -> float:
        return candidate.alone - candidate.cost(self.launch) - candidate.opened

    def _with_one_more(self, candidate: Candidate, of_value: dict[Value, list[Candidate]]) -> dict[int, Candidate]:
        found = {}
        for value in candidate.shared:
            for piece in of_value.get(value, ())[:_MOST_READERS]:
                if piece.operations & ~candidate.operations and piece.region.numel == candidate.region.numel:
                    found[piece.operations] = piece
        joined = [self.union(candidate, piece) for _, piece in sorted(found.items())]
        return {each.operations: each for each in joined if each is not None}

    def union(self, one: Candidate, other: Candidate) -> Candidate | None:
        key = one.operations | other.operations
        if key not in self.found:
            self.found[key] = self._union(one, other)
        return self.found[key]

    def _union(self, one: Candidate, other: Candidate) -> Candidate | None:
        first, second = (other.region, one.region) if other.region.anchor else (one.region, other.region)
        if one.kind != other.kind or needs_all_of(first, second) or needs_all_of(second, first):
            return None
        if (space := common_space(first, second)) is None:
            return None
        region = copy_of(first)
        region.space = space
        join_parts(region, second, self.pieces.place_of)
        candidate = self._made(region)
        if candidate is not None:
            candidate.parts, candidate.alone = one.parts + other.parts, one.alone + other.alone
        return candidate

    def _is_of_use(self, candidate: Candidate) -> bool:
        """Whether each operation's result can be stored or is needed in the region."""
        provided = set((candidate.provides))
        results = [each.results[0] for each in candidate.region.members if each.results[0] not in provided]
        return all(self.pieces.users(each)[0] & candidate.operations for each in results)

    def _made(self, region: Region) -> Candidate | None:
        """None where it would need its own result."""
        operations = once = before = 0
        for each in region.members:
            bit = 1 << self.pieces.place_of[each]
            operations |= bit
            if isinstance(each, Reduce) or each is region.anchor or each in region.of_rows:
                once |= bit
        views = {(view.value, view.layout): view for view in reads_of_region(region)}
        reads: dict[Value, int] = {}
        for (value, _), view in views.items():
            before |= self.before.get(value, 0)
            reads[value] = reads.get(value, 0) + view.elements * view.value.dtype.itemsize
        if before & once:
            return None
        opens = []
        for each in region.members:
            users, is_given = self.pieces.users(each.results[0])
            if is_given or users & ~operations:
                opens.append(each.results[0].bytes)
        if len(opens) > MOST_OUTPUTS:
            return None
        provides = [each.results[0] for each in region.members if not before >> self.pieces.place_of[each] & 1]
        shared = {view.value for view in region.whole_leaves()}
        shared |= {each.results[0] for each in region.members if not isinstance(each, Reduce)}
        return Candidate(region, operations, before, once, reads, tuple(provides), shared, sum(opens), _kind(region))


def _before(pieces: Pieces) -> dict[Value, int]:
    """The operations that each value in memory needs, by their places in the graph as bits. A small operation's
    result that one region stores and another computes for itself is none of what the other needs."""
    found: dict[Value, int] = {}
    parts = {each: region for region in pieces.regions for each in region.operations}
    for place, operation in enumerate(pieces.graph.operations):
        operations, read = [operation], operation.operands
        if (region := parts.get(operation)) is not None:
            operations, leaves = region.traced(operation)
            read = leaves.values()
        bits = 1 << place
        for each in operations:
            bits |= 1 << pieces.place_of[each]
        for view in read:
            bits |= found.get(view.value, 0)
        for result in operation.results:
            found[result] = bits
    return found


def _kind(region: Region) -> tuple:
    """On which device it is, and whether it computes in fp64 (regions.same_kind)."""
    types = {view.value.dtype for view in region.leaves.values()}
    types |= {value.dtype for each in region.members for value in each.results}
    types |= {view.value.dtype for each in region.members for view in each.operands}
    return region.members[0].results[0].device, torch.float64 in types
