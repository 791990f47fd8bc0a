"""Groups that a plan may be made of: grown from the atoms of a graph, piece by piece, those that spare most bytes
first, by the rules of fusion/horizontal.py. They overlap: what several of them compute, and none stores, is computed again."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from ...ir.graph import Reduce, Value
from ...ir.kernel_limits import MOST_OUTPUTS
from ..group import FusionGroup
from ..horizontal import common_space, needs_all_of
from ..schedule import reads_of_region
from .atoms import Atoms

BEAM, MOST_ATOMS = 3, 6  # of the groups that grow from a piece
MOST = 10000  # of a graph's: with so many, components that come later stay as the greedy plan has them
_MOST_READERS = 8  # of one tensor that are looked at


@dataclass(eq=False)
class Candidate:
    """operations, before, once: places in the graph, as bits: what it computes, what is done before, and what no other
    group may compute. reads: the bytes of the values that it reads. provides: what it can store. shared: values
    that it reads element by element, or makes so. opened: the bytes of what it makes and others need. parts: the atoms
    and groups that it grew from, by their operations. alone: what these cost."""

    group: FusionGroup
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
        return sum(self.reads.values()) + (0 if self.group.anchor else launch)


class Candidates:
    """launch: the bytes that take as long as a kernel's start."""

    def __init__(self, atoms: Atoms, launch: float):
        self.atoms, self.launch = atoms, launch
        self.found: dict[int, Candidate | None] = {}  # by operations
        self.before = _before(atoms)

    def of(self, group: FusionGroup) -> Candidate | None:
        """The candidate that a group is."""
        own = copy.copy(group)
        own.operations, own.recomputed = self.atoms.ordered((*group.recomputed, *group.operations)), []
        if (candidate := self._made(own)) is not None:
            candidate.parts = (candidate.operations,)
            candidate.alone = candidate.cost(self.launch) + candidate.opened
            self.found.setdefault(candidate.operations, candidate)
        return candidate

    def grow(self, atoms: list[Candidate], groups: list[Candidate]) -> list[Candidate]:
        """What these atoms are if more and more of them are one, and groups with one piece more."""
        of_value: dict[Value, list[Candidate]] = {}
        for atom in atoms:
            for value in sorted(atom.shared, key=lambda value: (self.before.get(value, 0), value.number)):
                of_value.setdefault(value, []).append(atom)
        found = {each.operations: each for each in (*atoms, *groups)}
        for group in groups:
            found |= self._with_one_more(group, of_value)
        for atom in atoms:
            layer = [atom]
            for _ in range(MOST_ATOMS - 1):
                following: dict[int, Candidate] = {}
                for candidate in layer:
                    following |= self._with_one_more(candidate, of_value)
                found |= following
                layer = sorted(following.values(), key=lambda each: (-self._spared(each), each.operations))[:BEAM]
        greedy = {each.operations for each in groups}
        return [each for key, each in sorted(found.items()) if key in greedy or self._is_of_use(each)]

    def _spared(self, candidate: Candidate) -> float:
        return candidate.alone - candidate.cost(self.launch) - candidate.opened

    def _with_one_more(self, candidate: Candidate, of_value: dict[Value, list[Candidate]]) -> dict[int, Candidate]:
        found = {}
        for value in candidate.shared:
            for atom in of_value.get(value, ())[:_MOST_READERS]:
                if atom.operations & ~candidate.operations and atom.group.numel == candidate.group.numel:
                    found[atom.operations] = atom
        joined = [self.union(candidate, atom) for _, atom in sorted(found.items())]
        return {each.operations: each for each in joined if each is not None}

    def union(self, one: Candidate, other: Candidate) -> Candidate | None:
        key = one.operations | other.operations
        if key not in self.found:
            self.found[key] = self._union(one, other)
        return self.found[key]

    def _union(self, one: Candidate, other: Candidate) -> Candidate | None:
        first, second = (other.group, one.group) if other.group.anchor else (one.group, other.group)
        if one.kind != other.kind or needs_all_of(first, second) or needs_all_of(second, first):
            return None
        if (space := common_space(first, second)) is None:
            return None
        group = first.copy()
        group.absorb(second, space, self.atoms.place_of)
        candidate = self._made(group)
        if candidate is not None:
            candidate.parts, candidate.alone = one.parts + other.parts, one.alone + other.alone
        return candidate

    def _is_of_use(self, candidate: Candidate) -> bool:
        """Whether each operation's result can be stored or is needed in the group."""
        provided = set(candidate.provides)
        results = [each.results[0] for each in candidate.group.members if each.results[0] not in provided]
        return all(self.atoms.users(each)[0] & candidate.operations for each in results)

    def _made(self, group: FusionGroup) -> Candidate | None:
        """None where it would need its own result."""
        operations = once = before = 0
        for each in group.members:
            bit = 1 << self.atoms.place_of[each]
            operations |= bit
            if isinstance(each, Reduce) or each is group.anchor or each in group.per_row:
                once |= bit
        views = {(view.value, view.layout): view for view in reads_of_region(group)}
        reads: dict[Value, int] = {}
        for (value, _), view in views.items():
            before |= self.before.get(value, 0)
            reads[value] = reads.get(value, 0) + view.elements * view.value.dtype.itemsize
        if before & once:
            return None
        opens = []
        for each in group.members:
            users, is_given = self.atoms.users(each.results[0])
            if is_given or users & ~operations:
                opens.append(each.results[0].bytes)
        if len(opens) > MOST_OUTPUTS:
            return None
        provides = [each.results[0] for each in group.members if not before >> self.atoms.place_of[each] & 1]
        shared = {view.value for view in group.full_inputs()}
        shared |= {each.results[0] for each in group.members if not isinstance(each, Reduce)}
        return Candidate(group, operations, before, once, reads, tuple(provides), shared, sum(opens), _kind(group))


def _before(atoms: Atoms) -> dict[Value, int]:
    """The operations that each value in memory needs, by their places in the graph as bits. A small operation's
    result that one group stores and another computes for itself is none of what the other needs."""
    found: dict[Value, int] = {}
    parts = {each: group for group in atoms.groups for each in group.operations}
    for place, operation in enumerate(atoms.graph.operations):
        operations, read = [operation], operation.operands
        if (group := parts.get(operation)) is not None:
            operations, inputs = group.traced(operation)
            read = inputs.values()
        bits = 1 << place
        for each in operations:
            bits |= 1 << atoms.place_of[each]
        for view in read:
            bits |= found.get(view.value, 0)
        for result in operation.results:
            found[result] = bits
    return found


def _kind(group: FusionGroup) -> tuple:
    """On which device it is, and whether it computes in fp64 (groups.same_kind)."""
    types = {view.value.dtype for view in group.inputs.values()}
    types |= {value.dtype for each in group.members for value in each.results}
    types |= {view.value.dtype for each in group.members for view in each.operands}
    return group.members[0].results[0].device, torch.float64 in types
