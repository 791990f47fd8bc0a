"""Operations that read their operand through maps of its axes (axis_map.py), several after another as one."""

from __future__ import annotations

from .access import access_of, fill_bits
from .axis_map import AxisMap
from .graph import Graph, Indexed, Map, Typed, View
from .iteration_space import find_space, index_map_of
from .layout import Layout

DEVICES = {"cuda"}  # on CPUs PyTorch's own operators move elements faster
MOST_POSITIONS = 1 << 16  # of a map
Maps = dict[int, AxisMap]  # by dimension; dimensions left out have the identity


def is_read(layout: Layout, source: View, maps: Maps, fill: float) -> bool:
    """True if there is a space in which a program reads the view through maps, for a result of this layout."""
    index_map = index_map_of(layout, source.layout)
    if maps:
        index_map = access_of(layout, source.layout, _of_dims(layout, maps), fill)
    return find_space(layout.numel, {index_map}, set()) is not None


def add_indexed(graph: Graph, name: str, type: Typed, source: View, maps: Maps, fill: float) -> View:
    """Add an operation that reads a view through maps, or copies it if there are none."""
    operation = Map([source], "clone", lambda x: x)
    if maps:
        operation = Indexed([source], name, lambda x: x, _of_dims(type.layout, maps), fill)
    (result,) = graph.add(operation, [type])
    return View(result, type.layout)


def _of_dims(layout: Layout, maps: Maps) -> tuple[AxisMap | None, ...]:
    return tuple(maps.get(d) for d in range(len(layout.sizes)))


def after_source(source: View, maps: Maps, fill: float) -> tuple[View, Maps, float]:
    """The operand, maps and fill by which a view is read where it is the result of such an operation itself: those of
    both as one."""
    maker = source.value.maker
    while isinstance(maker, Indexed) and source.layout == source.value.layout:
        (inner,) = maker.inputs
        before = {d: axis_map for d, axis_map in enumerate(maker.maps) if axis_map is not None}
        gaps = [any(axis_map.has_gaps for axis_map in some.values()) for some in (maps, before)]
        if all(gaps) and fill_bits(fill) != fill_bits(maker.fill):
            break
        chooses = all(axis_map.only_chooses for axis_map in maps.values())
        if not maker.only_chooses or (not chooses and gaps[1] and maker.fill):
            break
        maps = {d: _joined(before.get(d), maps.get(d)) for d in {*before, *maps}}
        maps = {d: axis_map for d, axis_map in maps.items() if not axis_map.is_identity}
        fill = fill if gaps[0] else maker.fill
        source, maker = inner, inner.value.maker
    return source, maps, fill


def _joined(inner: AxisMap | None, outer: AxisMap | None) -> AxisMap:
    """The map of one and then the other, of which one is there."""
    if inner is None or outer is None:
        return inner or outer
    return inner.then(outer)
