"""Rules of operators that read their operand through a map of each axis (ir/axis_map.py): a table of operators and
their maps."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..ir.access import access_of, fill_bits
from ..ir.axis_map import AxisMap
from ..ir.fake_tensors import real_tensors, typed
from ..ir.fx_utils import constant_pad
from ..ir.graph import Graph, Indexed, Map, Typed, View
from ..ir.iteration_space import find_space, index_map_of
from ..ir.kernel_limits import MOST_MAPS_OF_TENSOR
from ..ir.layout import Layout
from . import constant_pad as rows_of_zeros
from . import pointwise
from .contiguous import in_order
from .uncopied import uncopied

aten = torch.ops.aten
MOST_POSITIONS = 1 << 16  # of a map
# Taps of a map, whose number a kernel's key holds (csrc/program/axis_maps.h), and taps of all maps together from which
# on one pass for each axis reads less.
MOST_TAPS_OF_AXIS, MOST_TAPS = 64, 16
DEVICES = {"cuda"}  # on CPUs PyTorch's own operators move elements faster
Maps = dict[int, AxisMap]  # by dimension; dimensions left out have the identity


def indexed(graph: Graph, name: str, type: Typed, source: View, maps: Maps, fill: float = 0.0) -> View | None:
    """Add an operation that reads a view through maps, with a result of this type. None if no program can compute it.

    More taps than a kernel reads well are read axis by axis, with fp32 in between."""
    maps = {d: axis_map for d, axis_map in maps.items() if not axis_map.is_identity}
    if type.device.type not in DEVICES or len(maps) > MOST_MAPS_OF_TENSOR:
        return None
    if not pointwise.computes([source], type) or not source.layout.numel or source.value.layout.numel >= 2**31:
        return None
    if type.layout.numel < 2 or not type.layout.is_dense:
        return None
    if any(len(axis_map.rows) > MOST_POSITIONS or axis_map.taps > MOST_TAPS_OF_AXIS for axis_map in maps.values()):
        return None
    if not all(axis_map.only_chooses for axis_map in maps.values()):
        if torch.bool in (type.dtype, source.value.dtype):
            return None
        if type.dtype == torch.float64 and not all(map(_is_exact, maps.values())):
            return None
    source, maps, fill = _after_source(source, maps, fill)
    summed = [d for d, axis_map in maps.items() if axis_map.taps > 1]
    if len(summed) > 1 and math.prod(maps[d].taps for d in summed) > MOST_TAPS:
        first = max(summed, key=lambda d: maps[d].size / len(maps[d].rows))  # which leaves the fewest elements
        sizes = list(source.layout.sizes)
        sizes[first] = len(maps[first].rows)
        wide = torch.float64 if type.dtype == torch.float64 else torch.float32
        between = Typed(Layout(tuple(sizes), type.layout.strides).packed, wide, type.device)
        source = _added(graph, name, between, source, {first: maps.pop(first)}, 0.0)
        return None if source is None else indexed(graph, name, type, source, maps, fill)
    return _added(graph, name, type, source, maps, fill)


def _added(graph: Graph, name: str, type: Typed, source: View, maps: Maps, fill: float) -> View | None:
    """Add the operation, if there is a space for it: of what the source copies, of the source, or of a copy in the
    result's order of memory."""
    layout = type.layout

    def of_dims(maps: Maps) -> tuple[AxisMap | None, ...]:
        return tuple(maps.get(d) for d in range(len(layout.sizes)))

    def has_space(source: View, maps: Maps) -> bool:
        index_map = index_map_of(layout, source.layout)
        if maps:
            index_map = access_of(layout, source.layout, of_dims(maps), fill)
        return find_space(layout.numel, {index_map}, set()) is not None

    if maps and (before := uncopied(source, maps)) is not None and has_space(*before):
        source, maps = before
    elif not has_space(source, maps):
        source = in_order(graph, source, Layout(source.layout.sizes, layout.strides).packed)
        if not has_space(source, maps):
            return None
    operation = Map([source], "clone", lambda x: x)
    if maps:
        operation = Indexed([source], name, lambda x: x, of_dims(maps), fill)
    (result,) = graph.add(operation, [type])
    return View(result, layout)


def _is_exact(axis_map: AxisMap) -> bool:
    """True if fp32 holds the weights."""
    return all(weight == as_float(weight) for row in axis_map.rows for _, weight in row)


def as_float(number: float) -> float:
    """The number rounded to fp32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def _after_source(source: View, maps: Maps, fill: float) -> tuple[View, Maps, float]:
    """The operand and maps, where the source is read through maps itself: those of both as one."""
    maker = source.value.maker
    while isinstance(maker, Indexed) and source.layout == source.value.layout:
        (inner,) = maker.inputs
        before = {d: axis_map for d, axis_map in enumerate(maker.maps) if axis_map is not None}
        gaps = [any(axis_map.has_gaps for axis_map in some.values()) for some in (maps, before)]
        if all(gaps) and fill_bits(fill) != fill_bits(maker.fill):
            break
        chooses = all(axis_map.only_chooses for axis_map in maps.values())
        if len({*before, *maps}) > MOST_MAPS_OF_TENSOR:
            break
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


def _constant_pad(graph: Graph, value: Tensor, view: View, pads: Sequence[int], number=0) -> View | None:
    """Rule of constant_pad_nd: zeros behind rows, or maps."""
    if (result := rows_of_zeros.RULES[constant_pad](graph, value, view, pads, number)) is not None:
        return result
    if value.dtype == torch.float64 and float(number) != as_float(number):
        return None
    fill = float(bool(number)) if value.dtype == torch.bool else _rounded(float(number), value.dtype)
    sizes, maps = view.layout.sizes, {}
    for i in range(len(pads) // 2):
        d = len(sizes) - 1 - i
        maps[d] = AxisMap.choosing(sizes[d], range(-pads[2 * i], sizes[d] + pads[2 * i + 1]))
    return indexed(graph, "pad", typed(value), view, maps, fill)


def _rounded(number: float, dtype: torch.dtype) -> float:
    """The number as a tensor of this type has it."""
    with real_tensors():
        return torch.tensor(number, dtype=dtype).item()


def _roll(graph: Graph, value: Tensor, view: View, shifts: Sequence[int], dims: Sequence[int] = ()) -> View | None:
    """Rule of roll; without dimensions, of tensors of one."""
    sizes = view.layout.sizes
    if not dims and len(sizes) != 1:
        return None
    maps: Maps = {}
    for shift, dim in zip(shifts, dims or (0,), strict=True):
        d = dim % len(sizes)
        rolled = AxisMap.choosing(sizes[d], ((i - shift) % sizes[d] for i in range(sizes[d])))
        maps[d] = maps[d].then(rolled) if d in maps else rolled
    return indexed(graph, "roll", typed(value), view, maps)


def _flip(graph: Graph, value: Tensor, view: View, dims: Sequence[int]) -> View | None:
    """Rule of flip."""
    sizes = view.layout.sizes
    flipped = {dim % len(sizes) for dim in dims} if sizes else set()
    return indexed(
        graph, "flip", typed(value), view, {d: AxisMap.choosing(sizes[d], range(sizes[d])[::-1]) for d in flipped}
    )


def _padding(places: Callable[[int, int], int], name: str) -> tuple[Callable, Callable]:
    """Rules of a pad that repeats elements, and of its gradient. places(i, size): the element of place i, which may be
    outside of the source."""

    def maps(sizes: Sequence[int], pads: Sequence[int]) -> Maps:
        found = {}
        for i in range(len(pads) // 2):
            d, (before, after) = len(sizes) - 1 - i, pads[2 * i : 2 * i + 2]
            size = sizes[d]
            found[d] = AxisMap.choosing(size, (places(j, size) for j in range(-before, size + after)))
        return found

    def forward(graph: Graph, value: Tensor, view: View, pads: Sequence[int]) -> View | None:
        return indexed(graph, name, typed(value), view, maps(view.layout.sizes, pads))

    def backward(graph: Graph, value: Tensor, grad: View, view: View, pads: Sequence[int]) -> View | None:
        transposed = {d: axis_map.transposed() for d, axis_map in maps(view.layout.sizes, pads).items()}
        return indexed(graph, f"{name}_backward", typed(value), grad, transposed)

    return forward, backward


def _reflected(i: int, size: int) -> int:
    return -i if i < 0 else 2 * (size - 1) - i if i >= size else i


def _replicated(i: int, size: int) -> int:
    return min(max(i, 0), size - 1)


def _slice_scatter(graph: Graph, value: Tensor, base: View, source: View, dim=0, start=None, end=None, step=1):
    """Rule of slice_scatter into zeros."""
    maker, size = base.value.maker, base.layout.sizes[dim]
    if maker is None or getattr(maker, "name", "") != "full[0.0]":
        return None
    places = [-1] * size
    for place, i in enumerate(range(size)[start:end:step]):
        places[i] = place
    d = dim % len(base.layout.sizes)
    return indexed(graph, "slice_backward", typed(value), source, {d: AxisMap.choosing(source.layout.sizes[d], places)})


RULES: dict = {
    constant_pad: _constant_pad,
    aten.roll.default: _roll,
    aten.flip.default: _flip,
    aten.slice_scatter.default: _slice_scatter,
}
for _name, _places in (("reflection_pad", _reflected), ("replication_pad", _replicated)):
    for _rank in (1, 2, 3):
        _forward, _backward = _padding(_places, _name)
        RULES[getattr(aten, f"{_name}{_rank}d").default] = _forward
        RULES[getattr(aten, f"{_name}{_rank}d_backward").default] = _backward
