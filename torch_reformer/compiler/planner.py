"""A plan's regions by integer programming, where they cost less than the greedy ones: component by component."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field, replace

from . import candidates, choice
from .candidates import Candidate, Candidates
from .choice import choose, greedy_choice
from .components import Component, absolute, components_of, key_of, relative
from .copies import write_copies
from .cost import bytes_of_start, us_of_bytes
from .grouping import Grouping
from .ir import Graph, Operation
from .look_ups import look_up_in_regions
from .merge import merge
from .moved import moved
from .pieces import NoPieces, Pieces
from .recompute import recompute
from .regions import Region, copy_of
from .schedule import Cyclic, reads_of, schedule
from .turns import turn

AFTERWARDS = (write_copies, turn, look_up_in_regions)  # what changes regions once they are chosen
_ROUNDS = 4
_LEAST = 1e-4  # of a component's cost, for it to be planned anew


@dataclass(frozen=True)
class Planned:
    """What regions are expected to cost, in microseconds: the greedy ones, those of the plan, and what no choice among
    the candidates costs less than. Calls are not counted. seconds: of a processor, for
    the search; no two runs have the same."""

    greedy_us: float
    plan_us: float
    bound_us: float
    components: int
    distinct: int
    seconds: float = field(compare=False)

    @property
    def gap(self) -> float:
        return (self.plan_us - self.bound_us) / self.plan_us if self.plan_us else 0.0

    def __str__(self) -> str:
        costs = f"{self.greedy_us:.1f} us by greedy merging, {self.plan_us:.1f} us planned"
        bound = f"at least {self.bound_us:.1f} us (gap {self.gap:.2%})"
        return f"regions: {costs}, {bound}; {self.distinct} components, {self.components} with their copies"


@dataclass(frozen=True)
class _Pattern:
    """A choice for each of equal components: the parts of each candidate, and what is stored, by places in these."""

    parts: list[list[tuple[int, ...]]]
    stored: list[tuple[int, ...]]
    cost: float
    bound: float


def grouped(graph: Graph, architecture: str | None) -> tuple[list[Grouping], Planned | None]:
    """Groupings of the graph's operations, the best first; the last is greedy. architecture: of the GPU, None of a
    CPU."""
    grouping = Grouping(graph)
    grouping.run()
    try:
        pieces = Pieces(grouping) if choice.milp else None
    except NoPieces:
        pieces = None
    for _ in range(_ROUNDS):  # what one changes may let the other change more
        merged, recomputed = merge(grouping), recompute(grouping)
        if not merged and not recomputed:
            break
    planned = pieces and _Planner(grouping, pieces, architecture).run()
    groupings = [planned[0], grouping] if planned and planned[0] is not grouping else [grouping]
    for each in groupings:
        for change in AFTERWARDS:
            change(each)
    if not planned:
        return groupings, None
    groupings.sort(key=lambda each: cost_of(each, architecture))
    if groupings[0] is grouping:  # with these changes it costs less
        return [grouping], replace(planned[1], plan_us=planned[1].greedy_us)
    return groupings, planned[1]


class _Planner:
    def __init__(self, grouping: Grouping, pieces: Pieces, architecture: str | None):
        self.grouping, self.architecture = grouping, architecture
        self.launch = bytes_of_start(architecture)
        self.candidates = Candidates(pieces, self.launch)
        self.values = {id(each.results[0]): each.results[0] for region in pieces.regions for each in region.members}
        self.bytes = {key: value.bytes for key, value in self.values.items()}
        self.pieces = pieces

    def run(self) -> tuple[Grouping, Planned] | None:
        start = time.process_time()
        pieces = [self.candidates.of(each) for each in self.pieces.regions]
        greedy = [self.candidates.of(each) for each in self.grouping.regions.values()]
        if None in pieces or None in greedy:
            return None
        required = [view for operation in self.grouping.alone.values() for view in operation.operands]
        required += self.grouping.graph.output_views()
        required += [view for each in pieces if each.region.anchor for view in each.region.anchor.operands]
        found = components_of(pieces, greedy, {id(view.value) for view in required})
        patterns: dict[object, _Pattern | None] = {}
        greedy_cost = bound = 0.0
        better: dict[object, list[tuple[Component, _Pattern]]] = {}
        for component in found:
            own = greedy_choice(component, self.bytes, self.launch)
            key = key_of(component, self.candidates)
            if key not in patterns:
                is_full = len(self.candidates.found) >= candidates.MOST
                patterns[key] = None if is_full else self._pattern(component)
            pattern = patterns[key]
            greedy_cost += own.cost
            bound += min(pattern.bound, own.cost) if pattern else 0
            if pattern is not None and pattern.cost < own.cost * (1 - _LEAST):
                better.setdefault(key, []).append((component, pattern))
        planned, spared = self._with(list(better.values()))
        us = [us_of_bytes(self.architecture, each) for each in (greedy_cost, greedy_cost - spared, bound)]
        return planned, Planned(*us, len(found), len(patterns), time.process_time() - start)

    def _pattern(self, component: Component) -> _Pattern | None:
        grown = self.candidates.grow(component.pieces, component.greedy)
        found = choose(component, grown, self.bytes, self.launch)
        if found is None:
            return None
        places = self.grouping.place_of
        parts = [[relative(part, component) for part in each.parts] for each in found.candidates]
        stored = [relative(1 << places[id(self.values[value].maker)], component) for value in found.stored]
        return _Pattern(parts, stored, found.cost, found.bound)

    def _with(self, better: list[list[tuple[Component, _Pattern]]]) -> tuple[Grouping, float]:
        """The grouping with these components planned anew, or with as many kinds of them as leave an order."""
        spared = 0.0
        grouping = self.grouping
        for several in better:
            changed = self._changed(grouping, several)
            if changed is not None:
                grouping = changed
                spared += sum(greedy_choice(each, self.bytes, self.launch).cost - p.cost for each, p in several)
        return grouping, spared

    def _changed(self, grouping: Grouping, several: list[tuple[Component, _Pattern]]) -> Grouping | None:
        changed = grouping.copy()
        for component, pattern in several:
            stored = {absolute(each, component) for each in pattern.stored}
            chosen = [self._candidate(parts, component) for parts in pattern.parts]
            if None in chosen:
                return None
            self._replace(changed, component, chosen, stored)
        try:
            order = schedule(changed)
        except Cyclic:
            return None
        _order_needs(changed, order)
        return changed

    def _candidate(self, parts: list[tuple[int, ...]], component: Component) -> Candidate | None:
        first, *others = (self.candidates.found[absolute(part, component)] for part in parts)
        for each in others:
            if first is not None:
                first = self.candidates.union(first, each)
        return first

    def _replace(self, grouping: Grouping, component: Component, chosen: list[Candidate], stored: set[int]) -> None:
        """Puts these in the place of the greedy plan's regions. stored: operations, by their places as bits."""
        graph = grouping.graph
        old = {grouping.group_of[id(each)] for region in component.greedy for each in region.region.members}
        for number in old & grouping.regions.keys():
            del grouping.regions[number]
        makers: dict[int, list] = {}  # of each of the chosen what it stores
        left = set(stored)
        chosen = sorted(chosen, key=lambda each: (each.before.bit_length(), each.operations))
        for i, each in enumerate(chosen):
            own = [1 << grouping.place_of[id(value.maker)] for value in each.provides]
            makers[i] = [bit for bit in own if bit in left]
            left -= set(makers[i])
        owned: set[int] = set()
        for i, each in enumerate(chosen):
            outputs = [graph.operations[bit.bit_length() - 1] for bit in makers[i]]
            if outputs or each.region.anchor:
                self._add(grouping, each.region, outputs, owned)

    def _add(self, grouping: Grouping, region: Region, outputs: list[Operation], owned: set[int]) -> None:
        region = copy_of(region)
        needed, leaves = set(), {}
        for operation in outputs:
            if operation is not region.anchor:
                operations, read = region.traced(operation)
                needed |= set(map(id, operations))
                leaves |= read
        stored = set(map(id, outputs))
        computed = [each for each in region.operations if id(each) in needed]
        region.operations = [each for each in computed if id(each) in stored or id(each) not in owned]
        members = set(map(id, region.operations))
        region.recomputed = [each for each in computed if id(each) not in members]
        owned |= members
        region.leaves = leaves
        region.copies = {value: digits for value, digits in region.copies.items() if value in region.makes}
        region.operands = {*(digits for _, _, digits in leaves), *region.copies.values()}
        region.open_results = {id(each.results[0]) for each in outputs}
        region.number = grouping.new_group()
        grouping.regions[region.number] = region
        for each in region.members:
            grouping.group_of[id(each)] = region.number


def _order_needs(grouping: Grouping, order: list[int]) -> None:
    """Says anew which groups come before each, in this order."""
    for number in order:
        bits = 0
        for view in reads_of(grouping, number):
            maker = grouping.group_that_makes(view.value)
            if maker is not None and maker != number:
                bits |= grouping.needs[maker] | 1 << maker
        grouping.needs[number] = bits
    for one, other in itertools.pairwise(grouping.random):
        grouping.needs[other] |= grouping.needs[one] | 1 << one


def cost_of(grouping: Grouping, architecture: str | None) -> float:
    """Bytes that regions and calls move, with the regions' starts as such."""
    starts = sum(region.anchor is None for region in grouping.regions.values())
    return sum(map(sum, moved(grouping).values())) + starts * bytes_of_start(architecture)
