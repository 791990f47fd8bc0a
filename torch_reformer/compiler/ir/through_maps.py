"""Operations that read their operand through maps of its axes (axis_map.py), several after another as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from .access import access_of, fill_bits
from .axis_map import AxisMap
from .graph import Graph, Indexed, Map, Typed, View
from .index_maps import IndexMap, index_map_of
from .iteration_space import find_space
from .kernel_limits import MOST_MAPS_OF_TENSOR
from .layout import Layout

DEVICES = {"cuda"}  # on CPUs PyTorch's own operators move elements faster
MOST_POSITIONS = 1 << 16  # of a map
Maps = dict[int, AxisMap]  # by dimension; dimensions left out have the identity


class Source(NamedTuple):
    """Elements of a view that an operation reads through maps.

    Attributes:
        fill: an element from nowhere.
        is_negated: the operation negates what it reads, also the fill.
    """

    view: View
    maps: Maps
    fill: float
    is_negated: bool = False

    def index_map(self, layout: Layout) -> IndexMap:
        """Index map of the view, for a result of this layout."""
        if not self.maps:
            return index_map_of(layout, self.view.layout)
        return access_of(layout, self.view.layout, _of_dims(layout, self.maps), self.fill)


def can_map(device: torch.device, sizes: Iterable[int] = ()) -> bool:
    """True if programs on this device may read through maps of axes whose results have these sizes. A map lists all
    elements of its axis, so ask before it is made."""
    return device.type in DEVICES and all(size <= MOST_POSITIONS for size in sizes)


def is_read(layout: Layout, source: Source) -> bool:
    """True if there is a space in which a program reads the source, for a result of this layout."""
    if len(source.maps) > MOST_MAPS_OF_TENSOR:
        return False
    return find_space(layout.numel, {source.index_map(layout)}, set()) is not None


def add_indexed(graph: Graph, name: str, type: Typed, source: Source) -> View:
    """Add an operation that reads the source, or copies it if there are no maps."""
    operation = Map([source.view], "clone", lambda x: x)
    if source.maps:
        operation = Indexed([source.view], name, lambda x: x, _of_dims(type.layout, source.maps), source.fill)
    (result,) = graph.add(operation, [type])
    if source.is_negated:
        (result,) = graph.add(Map([View(result, type.layout)], "neg", lambda x: -x), [type])
    return View(result, type.layout)


def _of_dims(layout: Layout, maps: Maps) -> tuple[AxisMap | None, ...]:
    return tuple(maps.get(d) for d in range(len(layout.sizes)))


def after_makers(source: Source) -> Source:
    """The source that has the same elements where the view is a result of such operations itself, or is negated: those
    of all as one."""
    while (before := _after_negation(source) or _after_maps(source)) is not None:
        source = before
    return source


def _after_negation(source: Source) -> Source | None:
    """The negated operand, with the negated fill. None if nothing is negated, or if elements are summed: from nowhere a
    sum is 0, not -0."""
    maker, dims = source.view.value.maker, _dims(source.view)
    if not isinstance(maker, Map) or maker.name != "neg" or dims is None:
        return None
    (operand,) = maker.inputs
    if operand.value.dtype != source.view.value.dtype or not _only_choose(source.maps):
        return None
    return Source(_with_dims(operand, dims), source.maps, -source.fill, not source.is_negated)


def _after_maps(source: Source) -> Source | None:
    """The operand of an operation that reads through maps, with the maps of both; None if they are not one."""
    maker, dims, maps = source.view.value.maker, _dims(source.view), source.maps
    if not isinstance(maker, Indexed) or dims is None:
        return None
    if any(axis_map is not None and d not in dims for d, axis_map in enumerate(maker.maps)):
        return None
    before = {i: maker.maps[d] for i, d in enumerate(dims) if d is not None and maker.maps[d] is not None}
    if len({*before, *maps}) > MOST_MAPS_OF_TENSOR:
        return None
    gaps = [any(axis_map.has_gaps for axis_map in some.values()) for some in (maps, before)]
    if all(gaps) and fill_bits(source.fill) != fill_bits(maker.fill):
        return None
    if not maker.only_chooses or (not _only_choose(maps) and gaps[1] and maker.fill):
        return None
    maps = {d: _joined(before.get(d), maps.get(d)) for d in {*before, *maps}}
    maps = {d: axis_map for d, axis_map in maps.items() if not axis_map.is_identity}
    (operand,) = maker.inputs
    return Source(_with_dims(operand, dims), maps, source.fill if gaps[0] else maker.fill, source.is_negated)


def _only_choose(maps: Maps) -> bool:
    return all(axis_map.only_chooses for axis_map in maps.values())


def _dims(view: View) -> list[int | None] | None:
    """For each dimension of a view, the dimension of its value that it is; None for a further one of one element. None
    if the view is not the value, but for dimensions of one element."""
    dims: list[int | None] = []
    axes = [axis for axis in zip(view.value.layout.sizes, view.value.layout.strides, strict=True)]
    d = 0
    for size, stride in zip(view.layout.sizes, view.layout.strides, strict=True):
        while d < len(axes) and axes[d][0] == 1 and size > 1:
            d += 1
        is_same = d < len(axes) and axes[d][0] == size and (size == 1 or axes[d][1] == stride)
        if not is_same and size > 1:
            return None
        dims.append(d if is_same else None)
        d += is_same
    is_all = all(size == 1 for size, _ in axes[d:])
    return dims if is_all and view.layout.offset == view.value.layout.offset else None


def _with_dims(operand: View, dims: list[int | None]) -> View:
    """The view with these of its dimensions, and further ones of one element."""
    sizes, strides = operand.layout.sizes, operand.layout.strides
    of_view = [(1, 0) if d is None else (sizes[d], strides[d]) for d in dims]
    sizes, strides = tuple(size for size, _ in of_view), tuple(stride for _, stride in of_view)
    return View(operand.value, Layout(sizes, strides, operand.layout.offset))


def _joined(inner: AxisMap | None, outer: AxisMap | None) -> AxisMap:
    """The map of one and then the other, of which one is there."""
    if inner is None or outer is None:
        return inner or outer
    return inner.then(outer)
