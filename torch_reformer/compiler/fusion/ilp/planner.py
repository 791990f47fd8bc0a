"""Fusion by integer linear programming: replace the groups of each component for which others cost less."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ....runtime.sizes import estimate
from ...ir.device_model import bytes_of_start, us_of_bytes
from ..greedy import Fusion
from ..traffic import traffic
from ..verify import verify
from . import candidates, milp
from .apply import replace_groups, update_needs
from .atoms import Atoms, NoAtoms
from .candidates import Candidate, Candidates
from .components import Component, absolute, components_of, key_of, relative
from .model import ComponentSolver, Inconsistent, Solution


@dataclass(frozen=True)
class IlpSummary:
    """Expected cost of the fusion groups, without extern calls, and the search for them.

    Attributes:
        greedy_us, plan_us: microseconds of the greedy groups and of the plan's.
        bound_us: lower bound of any choice among the candidates.
        components, distinct: number of components, and of those that are not equal to another.
        refused: reasons for which solutions that would cost less were not taken.
        seconds: processor time of the search, which differs from run to run.
    """

    greedy_us: float
    plan_us: float
    bound_us: float
    components: int
    distinct: int
    refused: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def gap(self) -> float:
        """Relative distance of the plan's cost to the bound."""
        return (self.plan_us - self.bound_us) / self.plan_us if self.plan_us else 0.0

    def __str__(self) -> str:
        costs = f"{self.greedy_us:.1f} us by greedy merging, {self.plan_us:.1f} us planned"
        bound = f"at least {self.bound_us:.1f} us (gap {self.gap:.2%})"
        text = f"groups: {costs}, {bound}; {self.distinct} components, {self.components} with their copies"
        return "".join([text, *(f"; greedy, as {reason}" for reason in self.refused)])


def seed_groups(fusion: Fusion) -> Atoms | None:
    """Atoms of a fusion; None if no solver is installed or an atom can't be a kernel by itself."""
    try:
        return Atoms(fusion) if milp.name() else None
    except NoAtoms:
        return None


def integer_program(fusion: Fusion, atoms: Atoms, gpu: str | None) -> tuple[Fusion | None, IlpSummary | None]:
    """Find a fusion that costs less than ``fusion``.

    Args:
        atoms: the fusion's atoms.
        gpu: the GPU by which a kernel's start is weighed against traffic (a key of device_model.GPUS).

    Returns:
        The fusion, None if there is none, and what the search found, None if the graph can't be planned by ILP.
    """
    return _Planner(fusion, atoms, gpu).run()


class _Planner:
    def __init__(self, fusion: Fusion, atoms: Atoms, gpu: str | None):
        self.fusion, self.gpu = fusion, gpu
        launch = bytes_of_start(gpu)
        self.candidates, self.solver = Candidates(atoms, launch), ComponentSolver(atoms, launch)
        self.atoms = atoms

    def run(self) -> tuple[Fusion | None, IlpSummary | None]:
        atoms = [self.candidates.of(group) for group in self.atoms.groups]
        greedy = [self.candidates.of(group) for group in self.fusion.groups.values()]
        if None in atoms or None in greedy:
            return None, None
        required = [view for operation in self.fusion.extern_calls.values() for view in operation.operands]
        required += self.fusion.graph.output_views()
        required += [view for atom in atoms if atom.group.anchor for view in atom.group.anchor.operands]
        components = components_of(atoms, greedy, {view.value for view in required})
        equal: dict[object, list[Component]] = {}
        for component in components:
            equal.setdefault(key_of(component, self.candidates), []).append(component)
        better, refused = None, []
        greedy_cost = saved = bound = 0.0
        for copies in equal.values():
            greedy = self.solver.greedy(copies[0])
            greedy_cost += greedy.cost * len(copies)
            try:
                solution = self._solved(copies[0], greedy)
            except Inconsistent:
                refused.append("the greedy groups violate a constraint of their model")
                continue
            bound += solution.bound * len(copies)
            if solution.candidates is not greedy.candidates:
                before = better or self.fusion
                changed = self._changed(before, copies, solution)
                try:
                    verify(changed, traced=changed.groups.keys() - before.groups.keys())
                except ValueError as reason:
                    refused.append(str(reason))
                    continue
                better, saved = changed, saved + (greedy.cost - solution.cost) * len(copies)
                update_needs(better)
        us = [us_of_bytes(self.gpu, cost) for cost in (greedy_cost, greedy_cost - saved, bound)]
        return better, IlpSummary(*us, len(components), len(equal), tuple(refused))

    def _solved(self, component: Component, greedy: Solution) -> Solution:
        if len(self.candidates.by_operations) >= candidates.MOST:
            return replace(greedy, bound=0)
        grown = self.candidates.grow(component.atoms, component.greedy)
        return self.solver.best(component, grown)

    def _changed(self, fusion: Fusion, copies: list[Component], solution: Solution) -> Fusion:
        """Copy of the fusion in which equal components have the groups of the first one's solution."""
        first, changed, places = copies[0], fusion.copy(), fusion.place_of
        parts_of = [[relative(part, first) for part in candidate.parts] for candidate in solution.candidates]
        stored = [relative(1 << places[value.maker], first) for value in solution.stored]
        for component in copies:
            makers = (absolute(position, component).bit_length() - 1 for position in stored)
            values = {fusion.graph.operations[place].results[0] for place in makers}
            replace_groups(changed, component, [self._candidate(parts, component) for parts in parts_of], values)
        return changed

    def _candidate(self, parts: list[tuple[int, ...]], component: Component) -> Candidate:
        """Candidate of a component that has grown from these parts."""
        candidate, *others = (self.candidates.by_operations[absolute(part, component)] for part in parts)
        for other in others:
            candidate = self.candidates.union(candidate, other)
        return candidate


def cost_of(fusion: Fusion, gpu: str | None) -> float:
    """Traffic of groups and calls in bytes, with the start of each kernel as bytes that take as long."""
    starts = sum(group.anchor is None for group in fusion.groups.values())
    return sum(estimate(sum(bytes)) for bytes in traffic(fusion).values()) + starts * bytes_of_start(gpu)
