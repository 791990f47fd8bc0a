"""Which of a component's candidates become kernels, by integer programming.

z[S] says whether candidate S is a kernel, s[v] whether value v is stored. What S reads is stored: z[S] <= s[v]. What is
stored is made by a kernel: s[v] <= the sum of z[S] over those that can store v. A reduction is in one kernel at most, a
convolution in one exactly, and of two that need each other's reductions one is none. The cost is what kernels read and
start, and what is stored; what several of them compute is computed again. The greedy plan is one of the solutions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .candidates import Candidate
from .components import Component, places_of

try:
    import numpy
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix
except ImportError:
    milp = None

NODES, GAP = 20, 1e-3  # of a search: there is no limit of time, so that every process finds the same


@dataclass(frozen=True)
class Choice:
    """cost, bound: in bytes. stored: values by id."""

    candidates: list[Candidate]
    stored: set[int]
    cost: float
    bound: float


class _Program:
    """Minimises costs times variables of 0 and 1. A row: low <= the sum of coefficients times variables <= high."""

    def __init__(self):
        self.costs: list[float] = []
        self.entries: list[tuple[int, int, int]] = []  # row, variable, coefficient
        self.limits: list[tuple[float, float]] = []

    def variable(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def row(self, terms: dict[int, int], low: float, high: float) -> None:
        self.entries += [(len(self.limits), variable, c) for variable, c in terms.items()]
        self.limits.append((low, high))

    def solved(self) -> tuple[list[bool], float] | None:
        """Values of the variables, and what no others cost less than."""
        rows, columns, coefficients = zip(*self.entries, strict=True)
        unit = max(*self.costs, 1.0)
        matrix = csr_matrix((coefficients, (rows, columns)), shape=(len(self.limits), len(self.costs)))
        low, high = zip(*self.limits, strict=True)
        found = milp(
            numpy.array(self.costs) / unit,
            constraints=LinearConstraint(matrix, low, high),
            integrality=numpy.ones(len(self.costs)),
            bounds=Bounds(0, 1),
            options={"node_limit": NODES, "mip_rel_gap": GAP},
        )
        if found.x is None or found.mip_dual_bound is None:
            return None
        return [bool(each > 0.5) for each in found.x], found.mip_dual_bound * unit


def greedy_choice(component: Component, bytes_of: dict[int, int], launch: float) -> Choice:
    read = {value for each in component.greedy for value in each.reads}
    stored = component.required | (read & component.optional)
    cost = sum(each.cost(launch) for each in component.greedy) + sum(bytes_of[value] for value in stored)
    return Choice(component.greedy, stored, cost, -math.inf)


def choose(component: Component, candidates: list[Candidate], bytes_of: dict[int, int], launch: float) -> Choice | None:
    """None where the search found nothing within its limits."""
    program = _Program()
    required = component.required
    z = [program.variable(each.cost(launch)) for each in candidates]
    makers: dict[int, list[int]] = {}
    once: dict[int, list[int]] = {}
    for variable, candidate in zip(z, candidates, strict=True):
        for value in candidate.provides:
            makers.setdefault(id(value), []).append(variable)
        for place in places_of(candidate.once):
            once.setdefault(place, []).append(variable)
    s = {value: program.variable(bytes_of[value]) for value in makers if value in component.optional}
    for variable, candidate in zip(z, candidates, strict=True):
        for value in candidate.reads:
            if value in s:
                program.row({variable: 1, s[value]: -1}, -math.inf, 0)
    for value, variable in s.items():
        program.row({variable: 1, **dict.fromkeys(makers[value], -1)}, -math.inf, 0)
    for value in makers:
        if value in required:
            program.row(dict.fromkeys(makers[value], 1), 1, math.inf)
    anchors = {place for each in component.pieces if each.region.anchor for place in places_of(each.once)}
    for place, variables in once.items():
        program.row(dict.fromkeys(variables, 1), int(place in anchors), 1)
    for i, one in enumerate(candidates):
        for j, other in enumerate(candidates[:i]):
            if one.before & other.once and other.before & one.once:
                program.row({z[i]: 1, z[j]: 1}, 0, 1)
    if (found := program.solved()) is None:
        return None
    values, bound = found
    fixed = sum(bytes_of[value] for value in required)
    stored = required | {value for value, variable in s.items() if values[variable]}
    chosen = [each for variable, each in zip(z, candidates, strict=True) if values[variable]]
    cost = sum(each.cost(launch) for each in chosen) + sum(bytes_of[value] for value in stored)
    return Choice(chosen, stored, cost, bound + fixed)
