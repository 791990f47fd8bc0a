"""Components of a graph, which are solved one by one: a choice in one has no effect on another.

Equal components (repeated layers, unrolled loops) have one key and share one solution."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from ...ir.graph import Call, Operation, OverDims, Value
from ...ir.scan import Scan
from .atoms import DisjointSets
from .candidates import Candidate, Candidates

MOST_ATOMS = 24  # of a component; larger ones are cut where the greedy fusion stores a value


@dataclass(eq=False)
class Component:
    """Atoms that are fused independently of all others.

    Attributes:
        atoms: in the graph's order.
        greedy: the greedy fusion's groups of these atoms.
        required: results that are stored in any case.
        optional: results that are stored only if another kernel reads them.
    """

    atoms: list[Candidate]
    greedy: list[Candidate]
    required: set[Value]
    optional: set[Value]

    def places(self) -> list[int]:
        """Places of its operations in the graph, in order."""
        bits = 0
        for candidate in (*self.atoms, *self.greedy):
            bits |= candidate.operations
        return places_of(bits)


def places_of(bits: int) -> list[int]:
    """Places of the bits that are set, in order."""
    places, place = [], -1
    while bits:
        step = (bits & -bits).bit_length()
        place += step
        places.append(place)
        bits >>= step  # keeps the number as short as the range of places that is left
    return places


def components_of(atoms: list[Candidate], greedy: list[Candidate], required: set[Value]) -> list[Component]:
    """Divide atoms into components.

    Atoms are in one component if fusing them may avoid storing a value, or if the greedy fusion has them in one group.
    Large components are cut where the greedy fusion stores a value for several kernels, as a transformer's residual
    stream; if they are still large, where it stores a value for any.

    Args:
        required: values that are needed in memory in any case.
    """
    readers: dict[Value, int] = {}
    for candidate in greedy:
        for value in candidate.reads:
            readers[value] = readers.get(value, 0) + 1
    stored: set[Value] = set(required)
    components = _components(atoms, greedy, stored)
    for least in (2, 1):
        large = {value for each in components if len(each.atoms) > MOST_ATOMS for value in each.optional}
        cut = {value for value in large if readers.get(value, 0) >= least}
        if cut:
            stored |= cut
            components = _components(atoms, greedy, stored)
    return components


def _components(atoms: list[Candidate], greedy: list[Candidate], stored: set[Value]) -> list[Component]:
    """Connected components of atoms by the values that are not in ``stored``, and by the greedy groups."""
    sets, makers = DisjointSets(), {}
    for atom in atoms:
        for operation in atom.group.members:
            makers[operation.results[0]] = atom
    for atom in atoms:
        sets.find(atom.operations)
        for value in atom.reads:
            if value in makers and value not in stored:
                sets.unite(makers[value].operations, atom.operations)
    by_place = {place: atom for atom in atoms for place in places_of(atom.operations)}
    for group in greedy:
        first, *others = (by_place[place].operations for place in places_of(group.operations))
        for other in others:
            sets.unite(first, other)
    components: dict[int, Component] = {}
    for atom in atoms:
        component = components.setdefault(sets.find(atom.operations), Component([], [], set(), set()))
        component.atoms.append(atom)
        own = {operation.results[0] for operation in atom.group.members}
        component.required |= own & stored
        component.optional |= own - stored
    for group in greedy:
        atom = by_place[places_of(group.operations)[0]]
        components[sets.find(atom.operations)].greedy.append(group)
    return list(components.values())


def key_of(component: Component, candidates: Candidates) -> Hashable:
    """Key that is equal for components with equal solutions, by the places of operations within the component."""
    places = {place: n for n, place in enumerate(component.places())}
    own = sum(1 << place for place in places)
    values: dict[Value, int] = {}
    facts: list[Hashable] = []

    def local(bits: int) -> tuple[int, ...]:
        return tuple(places[place] for place in places_of(bits & own))

    def number(value: Value) -> int:
        if value not in values:
            values[value] = len(values)
            users, is_output = candidates.atoms.users(value)
            outside = is_output or bool(users & ~own)
            before = local(candidates.before.get(value, 0))
            facts.append((value.layout, value.dtype, value.device, before, local(users), outside))
        return values[value]

    def described(operation: Operation) -> Hashable:
        operands = tuple((number(view.value), view.layout) for view in operation.operands)
        results = tuple((number(result), result in component.optional) for result in operation.results)
        name = "" if isinstance(operation, Call) else getattr(operation, "name", "")
        over = (operation.kind, operation.over) if isinstance(operation, OverDims) else None
        over = (over, operation.is_reversed) if isinstance(operation, Scan) else over
        return type(operation).__name__, name, over, operands, results

    def shape(candidate: Candidate) -> Hashable:
        group = candidate.group
        inputs = tuple(sorted((number(view.value), str(view.layout), key[2]) for key, view in group.inputs.items()))
        per_row = tuple(operation in group.per_row for operation in group.members)
        index_maps = tuple(tuple(sorted(maps)) for maps in (group.operands, group.reductions, group.copies.values()))
        return local(candidate.operations), group.space, inputs, per_row, index_maps, bool(group.anchor)

    operations = tuple(described(candidates.atoms.graph.operations[place]) for place in places)
    shapes = tuple(map(shape, component.atoms)), tuple(map(shape, component.greedy))
    return operations, shapes, tuple(facts)


def relative(bits: int, component: Component) -> tuple[int, ...]:
    """Positions of operations within the component, of bits by their places in the graph."""
    places = {place: n for n, place in enumerate(component.places())}
    return tuple(places[place] for place in places_of(bits))


def absolute(positions: Iterable[int], component: Component) -> int:
    """Bits by places in the graph, of positions within the component."""
    places = component.places()
    return sum(1 << places[position] for position in positions)
