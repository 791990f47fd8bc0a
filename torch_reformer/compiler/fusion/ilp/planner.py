"""A plan's groups by integer programming, where they cost less than the greedy ones: component by component."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...ir.device_model import bytes_of_start, us_of_bytes
from ..greedy import Fusion
from ..traffic import traffic
from . import candidates, milp
from .apply import fault_of, note_needs, replace_groups
from .atoms import Atoms, NoAtoms
from .candidates import Candidate, Candidates
from .components import Component, absolute, components_of, key_of, relative
from .model import FusionModel, Inconsistent, Solution


@dataclass(frozen=True)
class Planned:
    """What groups are expected to cost, in microseconds: the greedy ones, those of the plan, and what no choice among
    the candidates costs less than. Calls are not counted. refused: why choices that would cost less were not taken.
    seconds: of a processor, for the search; no two runs have the same."""

    greedy_us: float
    plan_us: float
    bound_us: float
    components: int
    distinct: int
    refused: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def gap(self) -> float:
        return (self.plan_us - self.bound_us) / self.plan_us if self.plan_us else 0.0

    def __str__(self) -> str:
        costs = f"{self.greedy_us:.1f} us by greedy merging, {self.plan_us:.1f} us planned"
        bound = f"at least {self.bound_us:.1f} us (gap {self.gap:.2%})"
        text = f"groups: {costs}, {bound}; {self.distinct} components, {self.components} with their copies"
        return "".join([text, *(f"; greedy, as {each}" for each in self.refused)])


def seed_groups(fusion: Fusion) -> Atoms | None:
    try:
        return Atoms(fusion) if milp.name() else None
    except NoAtoms:
        return None


def integer_program(fusion: Fusion, atoms: Atoms, gpu: str | None) -> tuple[Fusion | None, Planned | None]:
    return _Planner(fusion, atoms, gpu).run()


class _Planner:
    def __init__(self, fusion: Fusion, atoms: Atoms, gpu: str | None):
        self.fusion, self.gpu = fusion, gpu
        launch = bytes_of_start(gpu)
        self.candidates, self.model = Candidates(atoms, launch), FusionModel(atoms, launch)
        self.atoms = atoms

    def run(self) -> tuple[Fusion | None, Planned | None]:
        """A fusion that costs less, if there is one."""
        atoms = [self.candidates.of(each) for each in self.atoms.groups]
        greedy = [self.candidates.of(each) for each in self.fusion.groups.values()]
        if None in atoms or None in greedy:
            return None, None
        required = [view for operation in self.fusion.extern_calls.values() for view in operation.operands]
        required += self.fusion.graph.output_views()
        required += [view for each in atoms if each.group.anchor for view in each.group.anchor.operands]
        components = components_of(atoms, greedy, {view.value for view in required})
        equal: dict[object, list[Component]] = {}
        for component in components:
            equal.setdefault(key_of(component, self.candidates), []).append(component)
        better, refused = None, []
        greedy_cost = spared = bound = 0.0
        for several in equal.values():
            greedy = self.model.greedy(several[0])
            greedy_cost += greedy.cost * len(several)
            try:
                found = self._chosen(several[0], greedy)
            except Inconsistent:
                refused.append("the groups are no solution of their program")
                continue
            bound += found.bound * len(several)
            if found.candidates is not greedy.candidates:
                changed = self._changed(better or self.fusion, several, found)
                if (fault := fault_of(changed)) is None:
                    better, spared = changed, spared + (greedy.cost - found.cost) * len(several)
                    note_needs(better)
                else:
                    refused.append(fault)
        us = [us_of_bytes(self.gpu, each) for each in (greedy_cost, greedy_cost - spared, bound)]
        return better, Planned(*us, len(components), len(equal), tuple(refused))

    def _chosen(self, component: Component, greedy: Solution) -> Solution:
        if len(self.candidates.found) >= candidates.MOST:
            return replace(greedy, bound=0)
        grown = self.candidates.grow(component.atoms, component.greedy)
        return self.model.best(component, grown)

    def _changed(self, fusion: Fusion, several: list[Component], found: Solution) -> Fusion:
        """A copy, in which equal components have the groups that were found for the first."""
        first, changed, places = several[0], fusion.copy(), fusion.place_of
        parts = [[relative(part, first) for part in each.parts] for each in found.candidates]
        stored = [relative(1 << places[value.maker], first) for value in found.stored]
        for component in several:
            makers = (absolute(each, component).bit_length() - 1 for each in stored)
            values = {fusion.graph.operations[place].results[0] for place in makers}
            replace_groups(changed, component, [self._candidate(each, component) for each in parts], values)
        return changed

    def _candidate(self, parts: list[tuple[int, ...]], component: Component) -> Candidate:
        first, *others = (self.candidates.found[absolute(part, component)] for part in parts)
        for each in others:
            first = self.candidates.union(first, each)
        return first


def cost_of(fusion: Fusion, gpu: str | None) -> float:
    """Bytes that groups and calls move, with the groups' starts as such."""
    starts = sum(group.anchor is None for group in fusion.groups.values())
    return sum(map(sum, traffic(fusion).values())) + starts * bytes_of_start(gpu)
