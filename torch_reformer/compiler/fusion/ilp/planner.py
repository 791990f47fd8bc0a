"""A plan's regions by integer programming, where they cost less than the greedy ones: component by component."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from ...ir.device_model import bytes_of_start, us_of_bytes
from ...ir.graph import Graph
from ...ir.stages import optional, show
from ..fuse_concat import write_parts
from ..fuse_copies import write_copies
from ..fuse_gather import look_up_in_regions
from ..fuse_transposes import turn
from ..greedy import Grouping
from ..horizontal import merge
from ..recompute import recompute
from ..traffic import moved
from . import candidates, milp
from .apply import fault_of, note_needs, replace_regions
from .atoms import NoPieces, Pieces
from .candidates import Candidate, Candidates
from .components import Component, absolute, components_of, key_of, relative
from .model import Choice, Chooser, Inconsistent

AFTERWARDS = (write_copies, write_parts, turn, look_up_in_regions)  # what changes regions once they are chosen
_ROUNDS = 4


@dataclass(frozen=True)
class Planned:
    """What regions are expected to cost, in microseconds: the greedy ones, those of the plan, and what no choice among
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
        text = f"regions: {costs}, {bound}; {self.distinct} components, {self.components} with their copies"
        return "".join([text, *(f"; greedy, as {each}" for each in self.refused)])


def grouped(graph: Graph, gpu: str | None) -> tuple[list[Grouping], Planned | None]:
    """Groupings of the graph's operations, the best first; the last is greedy. gpu: as cost.GPUS has it, None of a
    CPU."""
    grouping = Grouping(graph)
    grouping.run()
    show("fusion", grouping)
    start = time.process_time()
    pieces = optional(seed_groups, grouping)
    seconds = time.process_time() - start
    for _ in range(_ROUNDS):  # what one changes may let the other change more
        merged, recomputed = optional(merge, grouping), optional(recompute, grouping)
        if not merged and not recomputed:
            break
    start = time.process_time()
    better, planned = (optional(integer_program, grouping, pieces, gpu) if pieces else None) or (None, None)
    seconds += time.process_time() - start
    groupings = [better, grouping] if better else [grouping]
    for each in groupings:
        for change in AFTERWARDS:
            optional(change, each)
    if better and cost_of(better, gpu) >= cost_of(grouping, gpu):
        groupings, reason = [grouping], "with copies and look-ups it costs no more"
        planned = replace(planned, plan_us=planned.greedy_us, refused=(*planned.refused, reason))
    return groupings, planned and replace(planned, seconds=seconds)


def seed_groups(grouping: Grouping) -> Pieces | None:
    try:
        return Pieces(grouping) if milp.name() else None
    except NoPieces:
        return None


def integer_program(grouping: Grouping, pieces: Pieces, gpu: str | None) -> tuple[Grouping | None, Planned | None]:
    return _Planner(grouping, pieces, gpu).run()


class _Planner:
    def __init__(self, grouping: Grouping, pieces: Pieces, gpu: str | None):
        self.grouping, self.gpu = grouping, gpu
        launch = bytes_of_start(gpu)
        self.candidates, self.chooser = Candidates(pieces, launch), Chooser(pieces, launch)
        self.pieces = pieces

    def run(self) -> tuple[Grouping | None, Planned | None]:
        """A grouping that costs less, if there is one."""
        pieces = [self.candidates.of(each) for each in self.pieces.regions]
        greedy = [self.candidates.of(each) for each in self.grouping.regions.values()]
        if None in pieces or None in greedy:
            return None, None
        required = [view for operation in self.grouping.alone.values() for view in operation.operands]
        required += self.grouping.graph.output_views()
        required += [view for each in pieces if each.region.anchor for view in each.region.anchor.operands]
        components = components_of(pieces, greedy, {view.value for view in required})
        equal: dict[object, list[Component]] = {}
        for component in components:
            equal.setdefault(key_of(component, self.candidates), []).append(component)
        better, refused = None, []
        greedy_cost = spared = bound = 0.0
        for several in equal.values():
            greedy = self.chooser.greedy(several[0])
            greedy_cost += greedy.cost * len(several)
            try:
                found = self._chosen(several[0], greedy)
            except Inconsistent:
                refused.append("the regions are no solution of their program")
                continue
            bound += found.bound * len(several)
            if found.candidates is not greedy.candidates:
                changed = self._changed(better or self.grouping, several, found)
                if (fault := fault_of(changed)) is None:
                    better, spared = changed, spared + (greedy.cost - found.cost) * len(several)
                    note_needs(better)
                else:
                    refused.append(fault)
        us = [us_of_bytes(self.gpu, each) for each in (greedy_cost, greedy_cost - spared, bound)]
        return better, Planned(*us, len(components), len(equal), tuple(refused))

    def _chosen(self, component: Component, greedy: Choice) -> Choice:
        if len(self.candidates.found) >= candidates.MOST:
            return replace(greedy, bound=0)
        grown = self.candidates.grow(component.pieces, component.greedy)
        return self.chooser.best(component, grown)

    def _changed(self, grouping: Grouping, several: list[Component], found: Choice) -> Grouping:
        """A copy, in which equal components have the regions that were found for the first."""
        first, changed, places = several[0], grouping.copy(), grouping.place_of
        parts = [[relative(part, first) for part in each.parts] for each in found.candidates]
        stored = [relative(1 << places[value.maker], first) for value in found.stored]
        for component in several:
            makers = (absolute(each, component).bit_length() - 1 for each in stored)
            values = {grouping.graph.operations[place].results[0] for place in makers}
            replace_regions(changed, component, [self._candidate(each, component) for each in parts], values)
        return changed

    def _candidate(self, parts: list[tuple[int, ...]], component: Component) -> Candidate:
        first, *others = (self.candidates.found[absolute(part, component)] for part in parts)
        for each in others:
            first = self.candidates.union(first, each)
        return first


def cost_of(grouping: Grouping, gpu: str | None) -> float:
    """Bytes that regions and calls move, with the regions' starts as such."""
    starts = sum(region.anchor is None for region in grouping.regions.values())
    return sum(map(sum, moved(grouping).values())) + starts * bytes_of_start(gpu)
