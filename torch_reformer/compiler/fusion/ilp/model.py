"""Integer linear program that chooses which candidates of a component become kernels.

Variables: z[S] is 1 if candidate S is a kernel, s[v] is 1 if value v is stored. Cost: bytes that kernels read and that
are stored, and the kernels' starts. Constraints:

- A value v that S reads is stored, z[S] <= s[v].
- Another kernel makes it: z[S] <= sum of z[T] over the candidates T that can store v and leave S something to compute.
- Each reduction is in at most one kernel, each convolution in exactly one.
- Two candidates that need each other's reductions are not both kernels.
- An operation with one user is computed no more often than that user.

Operations that several chosen candidates compute are recomputed. The greedy groups are a feasible solution."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, replace

from ....runtime.sizes import estimate
from ...ir.graph import Value
from .atoms import Atoms
from .candidates import Candidate
from .components import Component, places_of
from .milp import Model

_LEAST = 1e-4  # relative saving for which a component's greedy groups are replaced
# Entries of a model that is searched. Those of networks have up to 16,000; with 750,000, of one variance over three of
# five dimensions, 50 nodes took 80 seconds and saved .006%.
_MOST_ENTRIES = 100_000


@dataclass(frozen=True)
class Solution:
    """Candidates of a component that become kernels, and the values that they store.

    cost: in bytes. bound: lower bound of the cost of any choice among the candidates.
    """

    candidates: list[Candidate]
    stored: set[Value]
    cost: float
    bound: float = -math.inf

    def is_better(self, other: Solution) -> bool:
        """True if it costs enough less to replace the other."""
        return self.cost < other.cost * (1 - _LEAST)


class Inconsistent(Exception):
    """The greedy groups violate a constraint of the component's model."""


class ComponentSolver:
    """Solver of components. launch: bytes whose traffic takes as long as starting a kernel."""

    def __init__(self, atoms: Atoms, launch: float):
        self.atoms, self.launch = atoms, launch
        values = (operation.results[0] for group in atoms.groups for operation in group.members)
        self.bytes = {value: estimate(value.bytes) for value in values}

    def greedy(self, component: Component) -> Solution:
        """Greedy groups as a solution."""
        read = {value for group in component.greedy for value in group.reads}
        return self._solution(component, component.greedy, read & component.optional)

    def best(self, component: Component, candidates: list[Candidate]) -> Solution:
        """Best solution that the search finds within its limits; the greedy one unless another costs less.

        The linear relaxation is solved first: its bound often shows that nothing costs less than the greedy groups.

        Raises:
            Inconsistent: the greedy groups violate a constraint.
        """
        greedy = self.greedy(component)
        model = FusionModel(self, component, candidates, greedy)
        if not model.allows(model.start):
            raise Inconsistent
        fixed = sum(self.bytes[value] for value in component.required)
        result = model.solved()
        bound = min(result.bound + fixed, greedy.cost)
        if not replace(greedy, cost=bound).is_better(greedy):
            return replace(greedy, bound=bound)
        if not result.is_integral:
            if len(model.variables) > _MOST_ENTRIES:
                return replace(greedy, bound=bound)
            result = model.solved(model.start)
            bound = max(bound, min(result.bound + fixed, greedy.cost))
        if result.values is None:
            return replace(greedy, bound=bound)
        stored = {value for value, variable in model.s.items() if result.values[variable] > 0.5}
        chosen = [candidate for candidate, z in zip(candidates, result.values, strict=False) if z > 0.5]
        best = self._solution(component, chosen, stored)
        return replace(best if best.is_better(greedy) else greedy, bound=bound)

    def _solution(self, component: Component, chosen: list[Candidate], stored: set[Value]) -> Solution:
        stored = component.required | stored
        cost = sum(candidate.cost(self.launch) for candidate in chosen) + sum(self.bytes[value] for value in stored)
        return Solution(chosen, stored, cost)


class FusionModel(Model):
    """Model of a component. Its first variables, z, are those of the candidates, in order.

    Attributes:
        s: value -> its variable.
        start: values of the variables for the greedy groups.
        makers: value -> candidates that can store it.
        once: operation (place) -> candidates that compute it, if at most one kernel may.
        computing: operation (place) -> candidates that compute it.
        single: operations that are in at most one kernel of any solution, as bits by place.
    """

    def __init__(self, solver: ComponentSolver, component: Component, candidates: list[Candidate], greedy: Solution):
        super().__init__()
        self.candidates, self.atoms = candidates, solver.atoms
        self.makers: dict[Value, list[int]] = {}
        self.once: dict[int, list[int]] = {}
        self.computing: dict[int, list[int]] = {}
        for z, candidate in enumerate(candidates):
            self.variable(candidate.cost(solver.launch))
            for value in candidate.provides:
                self.makers.setdefault(value, []).append(z)
            for by_place, bits in ((self.once, candidate.once), (self.computing, candidate.operations)):
                for place in places_of(bits):
                    by_place.setdefault(place, []).append(z)
        results = [operation.results[0] for atom in component.atoms for operation in atom.group.members]
        self._users = {result: self.atoms.users(result)[0] for result in results}
        read = (value for candidate in candidates for value in candidate.reads if value in component.optional)
        self.s = {value: self.variable(solver.bytes[value]) for value in dict.fromkeys(read)}
        groups = {candidate.operations for candidate in greedy.candidates}
        self.start = [float(candidate.operations in groups) for candidate in candidates]
        self.start += [float(value in greedy.stored) for value in self.s]
        self._limit_recomputation(component)
        self._require_stored(component)
        self._exclude_cycles(component)

    def _limit_recomputation(self, component: Component) -> None:
        """Constrain operations with one user to be computed no more often than that user, and find ``single``."""
        own = sum(1 << place for place in self.computing)
        self.single = sum(1 << place for place in self.once)
        for place in sorted(self.computing, reverse=True):
            (value,) = self.atoms.graph.operations[place].results
            users = self.atoms.users(value)[0] & own
            is_required = value in component.required
            if users.bit_count() > 1 or is_required == bool(users):
                continue
            terms, high = dict.fromkeys(self.computing[place], 1), int(is_required)
            for z in self.computing[users.bit_length() - 1] if users else ():
                terms[z] = terms.get(z, 0) - 1
            if sum(coefficient * self.start[variable] for variable, coefficient in terms.items()) <= high:
                self.row(terms, high=high)
                if is_required or users & self.single:
                    self.single |= 1 << place

    def _require_stored(self, component: Component) -> None:
        """Constrain values that are read, or needed outside of the component, to be stored and made.

        Readers that compute the same operation of ``single`` share a row, as at most one of them is a kernel."""
        groups: dict[tuple[Value, int], list[int]] = {}  # value, operation in one kernel or ~reader -> readers
        for z, candidate in enumerate(self.candidates):
            for value in candidate.reads:
                if value in self.s:
                    users = self._users[value] & candidate.operations & self.single
                    groups.setdefault((value, users & -users or ~z), []).append(z)
        provided = [candidate.provided for candidate in self.candidates]
        once = [candidate.once for candidate in self.candidates]
        for (value, user), readers in groups.items():
            makers = self.makers.get(value, ())
            if user < 0:
                # Not those that leave the reader nothing to store, or can't be kernels beside it.
                own, exclusive = provided[~user], once[~user]
                makers = [i for i in makers if own & ~provided[i] and not exclusive & once[i]]
            else:
                makers = [i for i in makers if not self.candidates[i].operations & user]
            self.row(dict.fromkeys(readers, 1) | {self.s[value]: -1}, high=0)
            self.row(dict.fromkeys(readers, 1) | dict.fromkeys(makers, -1), high=0)
        for atom in component.atoms:
            for value in (operation.results[0] for operation in atom.group.members):
                if value in component.required:
                    self.row(dict.fromkeys(self.makers.get(value, ()), 1), low=1)

    def _exclude_cycles(self, component: Component) -> None:
        """Constrain reductions to at most one kernel, convolutions to one, and exclude pairs that need each other."""
        anchors = {place for atom in component.atoms if atom.group.anchor for place in places_of(atom.once)}
        for place, variables in self.once.items():
            self.row(dict.fromkeys(variables, 1), int(place in anchors), 1)
        own = sum(1 << place for place in self.once)
        # Candidates by their operations in `once` and one place that must be complete before. At most one candidate of
        # such a list is a kernel, as of those that compute the place.
        dependent: dict[tuple[int, int], list[int]] = {}
        needing = dict.fromkeys(self.once, 0)  # of each place, the candidates as bits
        for z, candidate in enumerate(self.candidates):
            for place in places_of(candidate.before & own if candidate.once else 0):
                dependent.setdefault((candidate.once, place), []).append(z)
                needing[place] |= 1 << z
        computing = {place: sum(1 << i for i in variables) for place, variables in self.once.items()}

        @functools.cache
        def needing_any(places: int) -> int:
            return functools.reduce(operator.or_, (needing[place] for place in places_of(places)))

        for (once, place), dependents in dependent.items():
            if others := places_of(computing[place] & needing_any(once)):
                self.row(dict.fromkeys(dependents, 1) | dict.fromkeys(others, 1), high=1)
