"""Parts of a graph that are planned one by one: no choice in one of them bears on another. Equal ones (layers that are
repeated, loops that are unrolled) have one key, and one choice."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from ...ir.graph import Call, Operation, Reduce, Value
from .atoms import Sets
from .candidates import Candidate, Candidates

MOST_ATOMS = 24  # of a component, before it is cut where the greedy plan stores a value


@dataclass(eq=False)
class Component:
    """atoms: in the graph's order. greedy: the greedy plan's groups of them. required, optional: values of the
    component's own that are stored in any case, and only if another kernel is to read them."""

    atoms: list[Candidate]
    greedy: list[Candidate]
    required: set[Value]
    optional: set[Value]

    def places(self) -> list[int]:
        """Those of its operations in the graph, in order."""
        bits = 0
        for each in (*self.atoms, *self.greedy):
            bits |= each.operations
        return places_of(bits)


def places_of(bits: int) -> list[int]:
    found, place = [], -1
    while bits:
        step = (bits & -bits).bit_length()
        place += step
        found.append(place)
        bits >>= step  # what is left is as short as what the places span
    return found


def components_of(atoms: list[Candidate], greedy: list[Candidate], required: set[Value]) -> list[Component]:
    """Atoms are in one component if one of them may spare another's result, or if the greedy plan has them in one
    group. Large components are cut where the greedy plan stores a value for several kernels, as a transformer's
    residual stream, or else for any."""
    readers: dict[Value, int] = {}
    for each in greedy:
        for value in each.reads:
            readers[value] = readers.get(value, 0) + 1
    stored: set[Value] = set(required)
    found = _components(atoms, greedy, stored)
    for least in (2, 1):
        large = {value for each in found if len(each.atoms) > MOST_ATOMS for value in each.optional}
        cut = {value for value in large if readers.get(value, 0) >= least}
        if cut:
            stored |= cut
            found = _components(atoms, greedy, stored)
    return found


def _components(atoms: list[Candidate], greedy: list[Candidate], stored: set[Value]) -> list[Component]:
    sets, makers = Sets(), {}
    for atom in atoms:
        for each in atom.group.members:
            makers[each.results[0]] = atom
    for atom in atoms:
        sets.find(atom.operations)
        for value in atom.reads:
            if value in makers and value not in stored:
                sets.unite(makers[value].operations, atom.operations)
    by_place = {place: atom for atom in atoms for place in places_of(atom.operations)}
    for group in greedy:
        own = [by_place[place].operations for place in places_of(group.operations)]
        for each in own[1:]:
            sets.unite(own[0], each)
    found: dict[int, Component] = {}
    for atom in atoms:
        component = found.setdefault(sets.find(atom.operations), Component([], [], set(), set()))
        component.atoms.append(atom)
        own = {each.results[0] for each in atom.group.members}
        component.required |= own & stored
        component.optional |= own - stored
    for group in greedy:
        atom = by_place[places_of(group.operations)[0]]
        found[sets.find(atom.operations)].greedy.append(group)
    return list(found.values())


def key_of(component: Component, candidates: Candidates) -> Hashable:
    """Equal for components whose best choices are the same, as operations have the same places in them."""
    places = {place: n for n, place in enumerate(component.places())}
    own = sum(1 << place for place in places)
    values: dict[Value, int] = {}
    facts: list[Hashable] = []

    def local(bits: int) -> tuple[int, ...]:
        return tuple(places[place] for place in places_of(bits & own))

    def number(value: Value) -> int:
        if value not in values:
            values[value] = len(values)
            users, is_given = candidates.atoms.users(value)
            outside = is_given or bool(users & ~own)
            before = local(candidates.before.get(value, 0))
            facts.append((value.layout, value.dtype, value.device, before, local(users), outside))
        return values[value]

    def described(operation: Operation) -> Hashable:
        operands = tuple((number(view.value), view.layout) for view in operation.operands)
        results = tuple((number(each), each in component.optional) for each in operation.results)
        name = "" if isinstance(operation, Call) else getattr(operation, "name", "")
        over = (operation.kind, operation.over) if isinstance(operation, Reduce) else None
        return type(operation).__name__, name, over, operands, results

    def shape(candidate: Candidate) -> Hashable:
        group = candidate.group
        inputs = tuple(sorted((number(view.value), str(view.layout), key[2]) for key, view in group.inputs.items()))
        per_row = tuple(each in group.per_row for each in group.members)
        index_map = tuple(tuple(sorted(each)) for each in (group.operands, group.reductions, group.copies.values()))
        return local(candidate.operations), group.space, inputs, per_row, index_map, bool(group.anchor)

    operations = tuple(described(candidates.atoms.graph.operations[place]) for place in places)
    shapes = tuple(map(shape, component.atoms)), tuple(map(shape, component.greedy))
    return operations, shapes, tuple(facts)


def relative(bits: int, component: Component) -> tuple[int, ...]:
    places = {place: n for n, place in enumerate(component.places())}
    return tuple(places[place] for place in places_of(bits))


def absolute(places: Iterable[int], component: Component) -> int:
    own = component.places()
    return sum(1 << own[place] for place in places)
