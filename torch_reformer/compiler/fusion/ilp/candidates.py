"""Candidates: groups that a solution chooses from.

They grow from a graph's atoms, one atom at a time by the rules of fusion/horizontal.py, keeping those that save the
most bytes (beam search). Candidates overlap: operations that several chosen ones compute are recomputed."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from ....runtime.sizes import estimate
from ...ir.graph import OverDims, Reduce, Value
from ...ir.kernel_limits import MOST_OUTPUTS
from ..group import FusionGroup
from ..horizontal import common_space, needs_all_of
from ..schedule import reads_of_group
from .atoms import Atoms

BEAM, MOST_ATOMS = 3, 6  # candidates that grow further per step, and atoms in one that has grown from an atom
MOST = 10000  # candidates of a graph; components that come after these keep their greedy groups
_MOST_READERS = 8  # of one tensor, considered


@dataclass(eq=False)
class Candidate:
    """A group that may become a kernel. Sets of operations are bits by their places in the graph.

    Attributes:
        operations: the operations that it computes.
        before: operations that must be complete before it starts.
        once: operations that no other group may compute (reductions, scans, convolutions).
        reads: bytes of each value that it reads.
        provides: values that it can store.
        shared: values that it reads or makes element by element.
        live_bytes: bytes of its results that others need.
        kind: device, and True if it computes in fp64; only candidates of one kind are merged.
        parts: the atoms and groups that it grew from, by their operations.
        separate_cost: cost of these parts as kernels of their own.
    """

    group: FusionGroup
    operations: int
    before: int
    once: int
    reads: dict[Value, int]
    provides: tuple[Value, ...]
    shared: set[Value]
    live_bytes: int
    kind: tuple
    parts: tuple[int, ...] = ()
    separate_cost: float = 0.0

    @property
    def provided(self) -> int:
        """Operations whose results it can store, as bits."""
        return self.operations & ~self.before

    def cost(self, launch: float) -> float:
        """Bytes that it reads, with the start of a kernel as ``launch`` bytes."""
        return sum(self.reads.values()) + (0 if self.group.anchor else launch)


class Candidates:
    """Candidates of a graph, each made once.

    Attributes:
        launch: bytes whose traffic takes as long as starting a kernel.
        by_operations: candidates by their operations; None where one kernel can't compute these.
        before: operations that each value in memory needs.
    """

    def __init__(self, atoms: Atoms, launch: float):
        self.atoms, self.launch = atoms, launch
        self.by_operations: dict[int, Candidate | None] = {}
        self.before = _before(atoms)

    def of(self, group: FusionGroup) -> Candidate | None:
        """Candidate that stands for a group; None if its kernel would need its own result."""
        own = copy.copy(group)
        own.operations, own.recomputed = self.atoms.ordered((*group.recomputed, *group.operations)), []
        if (candidate := self._candidate(own)) is not None:
            candidate.parts = (candidate.operations,)
            candidate.separate_cost = candidate.cost(self.launch) + candidate.live_bytes
            self.by_operations.setdefault(candidate.operations, candidate)
        return candidate

    def grow(self, atoms: list[Candidate], groups: list[Candidate]) -> list[Candidate]:
        """Candidates grown from these atoms, and the groups with up to one more atom, in a fixed order."""
        sharing: dict[Value, list[Candidate]] = {}
        for atom in atoms:
            for value in sorted(atom.shared, key=lambda value: (self.before.get(value, 0), value.number)):
                sharing.setdefault(value, []).append(atom)
        grown = {candidate.operations: candidate for candidate in (*atoms, *groups)}
        for group in groups:
            grown |= self._with_one_more(group, sharing)
        for atom in atoms:
            layer = [atom]
            for _ in range(MOST_ATOMS - 1):
                following: dict[int, Candidate] = {}
                for candidate in layer:
                    following |= self._with_one_more(candidate, sharing)
                grown |= following
                layer = sorted(following.values(), key=self._rank)[:BEAM]
        greedy = {group.operations for group in groups}
        return [candidate for key, candidate in sorted(grown.items()) if key in greedy or self._is_useful(candidate)]

    def _rank(self, candidate: Candidate) -> tuple[float, int]:
        """Sort key: candidates that save the most come first."""
        saved = candidate.separate_cost - candidate.cost(self.launch) - candidate.live_bytes
        return -saved, candidate.operations

    def _with_one_more(self, candidate: Candidate, sharing: dict[Value, list[Candidate]]) -> dict[int, Candidate]:
        """Candidates with one more atom that shares a value with the candidate."""
        further = {}
        for value in candidate.shared:
            for atom in sharing.get(value, ())[:_MOST_READERS]:
                if atom.operations & ~candidate.operations and atom.group.numel == candidate.group.numel:
                    further[atom.operations] = atom
        unions = (self.union(candidate, atom) for _, atom in sorted(further.items()))
        return {union.operations: union for union in unions if union is not None}

    def union(self, one: Candidate, other: Candidate) -> Candidate | None:
        """Candidate that computes what both do; None if one kernel can't."""
        key = one.operations | other.operations
        if key not in self.by_operations:
            self.by_operations[key] = self._union(one, other)
        return self.by_operations[key]

    def _union(self, one: Candidate, other: Candidate) -> Candidate | None:
        first, second = (other.group, one.group) if other.group.anchor else (one.group, other.group)
        if one.kind != other.kind or needs_all_of(first, second) or needs_all_of(second, first):
            return None
        if (space := common_space(first, second)) is None:
            return None
        group = first.copy()
        group.absorb(second, space, self.atoms.place_of)
        candidate = self._candidate(group)
        if candidate is not None:
            candidate.parts = one.parts + other.parts
            candidate.separate_cost = one.separate_cost + other.separate_cost
        return candidate

    def _is_useful(self, candidate: Candidate) -> bool:
        """True if each operation's result can be stored or is needed within the group."""
        provided = set(candidate.provides)
        results = {operation.results[0] for operation in candidate.group.members} - provided
        return all(self.atoms.users(result)[0] & candidate.operations for result in results)

    def _candidate(self, group: FusionGroup) -> Candidate | None:
        """Candidate of a group; None if its kernel would need its own completed result or store too many."""
        operations = once = before = 0
        for operation in group.members:
            bit = 1 << self.atoms.place_of[operation]
            operations |= bit
            if isinstance(operation, OverDims) or operation is group.anchor or operation in group.per_row:
                once |= bit
        views = {(view.value, view.layout): view for view in reads_of_group(group)}
        reads: dict[Value, int] = {}
        for (value, _), view in views.items():
            before |= self.before.get(value, 0)
            reads[value] = reads.get(value, 0) + estimate(view.elements) * view.value.dtype.itemsize
        if before & once:
            return None
        live = []
        for operation in group.members:
            users, is_output = self.atoms.users(operation.results[0])
            if is_output or users & ~operations:
                live.append(estimate(operation.results[0].bytes))
        if len(live) > MOST_OUTPUTS:
            return None
        own = [operation for operation in group.members if not before >> self.atoms.place_of[operation] & 1]
        provides = tuple(operation.results[0] for operation in own)
        shared = {view.value for view in group.full_inputs()}
        shared |= {operation.results[0] for operation in group.members if not isinstance(operation, Reduce)}
        return Candidate(group, operations, before, once, reads, provides, shared, sum(live), _kind(group))


def _before(atoms: Atoms) -> dict[Value, int]:
    """Operations that each value in memory needs, as bits by their places in the graph.

    A small operation that one group stores and another recomputes is not among those that the other needs."""
    needs: dict[Value, int] = {}
    atom_of = {operation: group for group in atoms.groups for operation in group.operations}
    for place, operation in enumerate(atoms.graph.operations):
        traced, read = [operation], operation.operands
        if (group := atom_of.get(operation)) is not None:
            traced, inputs = group.traced(operation)
            read = inputs.values()
        bits = 1 << place
        for needed in traced:
            bits |= 1 << atoms.place_of[needed]
        for view in read:
            bits |= needs.get(view.value, 0)
        for result in operation.results:
            needs[result] = bits
    return needs


def _kind(group: FusionGroup) -> tuple:
    """Device of a group, and True if it computes in fp64 (group.same_kind)."""
    dtypes = {view.value.dtype for view in group.inputs.values()}
    dtypes |= {value.dtype for operation in group.members for value in operation.results}
    dtypes |= {view.value.dtype for operation in group.members for view in operation.operands}
    return group.members[0].results[0].device, torch.float64 in dtypes
