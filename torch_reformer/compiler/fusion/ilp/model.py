"""Which of a component's candidates become kernels, by integer programming.

z[S] says whether candidate S is a kernel, s[v] whether value v is stored. What S reads is stored, z[S] <= s[v], and
made by another kernel, z[S] <= the sum of z[T] over those that can store v and leave S something to do. A reduction is
in one kernel at most, a convolution in one exactly, and of two that need each other's reductions one is none. What one
operation needs is computed no more often than that one is. The cost is what kernels read and start, and what is stored;
what several of them compute is computed again. The greedy plan is one of the solutions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...ir.graph import Value
from .atoms import Atoms
from .candidates import Candidate
from .components import Component, places_of
from .milp import Model

_LEAST = 1e-4  # of a component's cost, for it to be planned anew


@dataclass(frozen=True)
class Solution:
    """cost: in bytes; bound: what no choice among the candidates costs less than. stored: values."""

    candidates: list[Candidate]
    stored: set[Value]
    cost: float
    bound: float = -math.inf

    def is_better(self, other: Solution) -> bool:
        return self.cost < other.cost * (1 - _LEAST)


class Inconsistent(Exception):
    """The greedy groups are no solution of a component's program."""


class FusionModel:
    """launch: the bytes that take as long as a kernel's start."""

    def __init__(self, atoms: Atoms, launch: float):
        self.atoms, self.launch = atoms, launch
        values = (each.results[0] for group in atoms.groups for each in group.members)
        self.bytes = {value: value.bytes for value in values}

    def greedy(self, component: Component) -> Solution:
        read = {value for each in component.greedy for value in each.reads}
        return self._choice(component, component.greedy, read & component.optional)

    def best(self, component: Component, candidates: list[Candidate]) -> Solution:
        """The best that the search finds within its limits; the greedy one where nothing costs less than that.

        Raises:
            Inconsistent: if the program does not have that.
        """
        greedy = self.greedy(component)
        program = _Model(self, component, candidates, greedy)
        if not program.allows(program.start):
            raise Inconsistent
        fixed = sum(self.bytes[value] for value in component.required)
        found = program.solved()
        bound = min(found.bound + fixed, greedy.cost)
        if not replace(greedy, cost=bound).is_better(greedy):
            return replace(greedy, bound=bound)
        if not found.is_of_integers:
            found = program.solved(program.start)
            bound = max(bound, min(found.bound + fixed, greedy.cost))
        if found.values is None:
            return replace(greedy, bound=bound)
        stored = {value for value, variable in program.s.items() if found.values[variable] > 0.5}
        chosen = [each for each, value in zip(candidates, found.values, strict=False) if value > 0.5]
        best = self._choice(component, chosen, stored)
        return replace(best if best.is_better(greedy) else greedy, bound=bound)

    def _choice(self, component: Component, chosen: list[Candidate], stored: set[Value]) -> Solution:
        stored = component.required | stored
        cost = sum(each.cost(self.launch) for each in chosen) + sum(self.bytes[value] for value in stored)
        return Solution(chosen, stored, cost)


class _Model(Model):
    """start: the greedy groups as a solution. z: the first variables, of the candidates. s: those of values."""

    def __init__(self, model: FusionModel, component: Component, candidates: list[Candidate], greedy: Solution):
        super().__init__()
        self.candidates, self.atoms = candidates, model.atoms
        self.makers: dict[Value, list[int]] = {}  # value -> those that can store it
        self.once: dict[int, list[int]] = {}  # operation (place) -> those that compute what only one may
        self.computing: dict[int, list[int]] = {}  # operation (place) -> those that compute it
        for z, candidate in enumerate(candidates):
            self.variable(candidate.cost(model.launch))
            for value in candidate.provides:
                self.makers.setdefault(value, []).append(z)
            for found, bits in ((self.once, candidate.once), (self.computing, candidate.operations)):
                for place in places_of(bits):
                    found.setdefault(place, []).append(z)
        results = [each.results[0] for atom in component.atoms for each in atom.group.members]
        self._users = {each: self.atoms.users(each)[0] for each in results}
        read = dict.fromkeys(value for each in candidates for value in each.reads if value in component.optional)
        self.s = {value: self.variable(model.bytes[value]) for value in read}
        groups = {each.operations for each in greedy.candidates}
        self.start = [float(each.operations in groups) for each in candidates]
        self.start += [float(value in greedy.stored) for value in self.s]
        self._repeat_nothing(component)
        self._store(component)
        self._order(component)

    def _repeat_nothing(self, component: Component) -> None:
        """single: of operations in one kernel at most, the places as bits."""
        own = sum(1 << place for place in self.computing)
        self.single = sum(1 << place for place in self.once)
        for place in sorted(self.computing, reverse=True):
            (value,) = self.atoms.graph.operations[place].results
            users = self.atoms.users(value)[0] & own
            is_required = value in component.required
            if users.bit_count() > 1 or is_required == bool(users):
                continue
            terms, high = dict.fromkeys(self.computing[place], 1), int(is_required)
            for each in self.computing[users.bit_length() - 1] if users else ():
                terms[each] = terms.get(each, 0) - 1
            if sum(coefficient * self.start[variable] for variable, coefficient in terms.items()) <= high:
                self.row(terms, high=high)
                if is_required or users & self.single:
                    self.single |= 1 << place

    def _store(self, component: Component) -> None:
        groups: dict[tuple[Value, int], list[int]] = {}  # value, operation of one kernel -> those that read and do
        for z, candidate in enumerate(self.candidates):
            for value in candidate.reads:
                if value in self.s:
                    users = self._users[value] & candidate.operations & self.single
                    groups.setdefault((value, users & -users or ~z), []).append(z)
        provided, once = [each.provided for each in self.candidates], [each.once for each in self.candidates]
        for (value, user), readers in groups.items():
            makers = self.makers.get(value, ())
            if user < 0:
                # Not those which leave it nothing to do, or can't be beside it.
                left, alone = provided[~user], once[~user]
                makers = [i for i in makers if left & ~provided[i] and not alone & once[i]]
            else:
                makers = [i for i in makers if not self.candidates[i].operations & user]
            self.row(dict.fromkeys(readers, 1) | {self.s[value]: -1}, high=0)
            self.row(dict.fromkeys(readers, 1) | dict.fromkeys(makers, -1), high=0)
        for atom in component.atoms:
            for value in (each.results[0] for each in atom.group.members):
                if value in component.required:
                    self.row(dict.fromkeys(self.makers.get(value, ()), 1), low=1)

    def _order(self, component: Component) -> None:
        anchors = {place for each in component.atoms if each.group.anchor for place in places_of(each.once)}
        for place, variables in self.once.items():
            self.row(dict.fromkeys(variables, 1), int(place in anchors), 1)
        own = sum(1 << place for place in self.once)
        alike: dict[tuple[int, int], list[int]] = {}  # operations of one kernel, one that is before -> of the former
        for z, one in enumerate(self.candidates):
            for place in places_of(one.before & own if one.once else 0):
                alike.setdefault((one.once, place), []).append(z)
        for (once, place), several in alike.items():  # one of them at most, as of those that compute the place
            others = [i for i in self.once[place] if self.candidates[i].before & once]
            if others:
                self.row(dict.fromkeys(several, 1) | dict.fromkeys(others, 1), high=1)
