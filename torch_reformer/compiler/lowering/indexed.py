"""Rules of operators that read their operand through a map of each axis (ir/axis_map.py): a table of operators and
their maps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...program.interpreter import computed_type
from ..ir.axis_map import AxisMap
from ..ir.contiguous import in_order
from ..ir.fake_tensors import real_tensors, typed
from ..ir.fx_utils import constant_pad
from ..ir.graph import Graph, Typed, View
from ..ir.kernel_limits import MOST_MAPS_OF_TENSOR
from ..ir.layout import Layout
from ..ir.through_maps import Maps, Source, add_indexed, after_makers, can_map, is_read
from . import constant_pad as rows_of_zeros
from . import pointwise
from .separable import axis_of_own_pass
from .uncopied import uncopied
from .whole_numbers import MOST, WHOLE

aten = torch.ops.aten
MOST_TAPS_OF_AXIS = 64  # whose number a kernel's key holds (csrc/program/axis_maps.h)


def indexed(
    graph: Graph, name: str, type: Typed, source: View, maps: Maps, fill: float = 0.0, in_one_pass: bool = False
) -> View | None:
    """Add an operation that reads a view through maps, with a result of this type. None if no program can compute it.

    Axes are read one after another, with fp32 in between, if that costs less and `in_one_pass` is not set."""
    maps = {d: axis_map for d, axis_map in maps.items() if not axis_map.is_identity}
    if not can_map(type.device, (len(axis_map.rows) for axis_map in maps.values())) or len(maps) > MOST_MAPS_OF_TENSOR:
        return None
    if type.dtype in WHOLE and abs(fill) >= MOST:
        return None
    if not pointwise.moves(graph, [source], type) or not source.layout.numel or source.value.layout.numel >= 2**31:
        return None
    if type.layout.numel < 2 or not type.layout.is_dense:
        return None
    if any(axis_map.taps > MOST_TAPS_OF_AXIS for axis_map in maps.values()):
        return None
    if not all(axis_map.only_chooses for axis_map in maps.values()):
        if torch.bool in (type.dtype, source.value.dtype):
            return None
        if type.dtype == torch.float64 and not all(map(_is_exact, maps.values())):
            return None
    read = after_makers(Source(source, maps, fill))
    wide = computed_type(type.dtype)
    sizes = read.view.value.dtype.itemsize, wide.itemsize, type.dtype.itemsize
    first = axis_of_own_pass(read.view.layout.sizes, type.layout, read.maps, sizes)
    if first is not None and not in_one_pass:
        others = {d: axis_map for d, axis_map in read.maps.items() if d != first}
        between = list(read.view.layout.sizes)
        between[first] = len(read.maps[first].rows)
        of_pass = Typed(Layout(tuple(between), type.layout.strides).packed, wide, type.device)
        source = _added(graph, name, of_pass, Source(read.view, {first: read.maps[first]}, 0.0))
        return None if source is None else indexed(graph, name, type, source, others, read.fill)
    return _added(graph, name, type, read)


def _added(graph: Graph, name: str, type: Typed, source: Source) -> View | None:
    """Add the operation, if there is a space for it: of what the source copies, of the source, or of a copy in the
    result's order of memory."""
    layout = type.layout
    if source.maps and (before := uncopied(source.view, source.maps)) is not None:
        view, maps = before
        if is_read(layout, copied := source._replace(view=view, maps=maps)):
            return add_indexed(graph, name, type, copied)
    if not is_read(layout, source):
        source = source._replace(
            view=in_order(graph, source.view, Layout(source.view.layout.sizes, layout.strides).packed)
        )
        if not is_read(layout, source):
            return None
    return add_indexed(graph, name, type, source)


def _is_exact(axis_map: AxisMap) -> bool:
    """True if fp32 holds the weights."""
    return all(weight == as_float(weight) for row in axis_map.rows for _, weight in row)


def as_float(number: float) -> float:
    """The number rounded to fp32, to infinity beyond its range."""
    return ctypes.c_float(number).value


def _constant_pad(graph: Graph, value: Tensor, view: View, pads: Sequence[int], number=0) -> View | None:
    """Rule of constant_pad_nd: zeros behind rows, or maps."""
    if (result := rows_of_zeros.RULES[constant_pad](graph, value, view, pads, number)) is not None:
        return result
    if value.dtype == torch.float64 and float(number) != as_float(number):
        return None
    sizes = view.layout.sizes
    pads_of = {len(sizes) - 1 - i: pads[2 * i : 2 * i + 2] for i in range(len(pads) // 2)}
    pads_of = {d: of_axis for d, of_axis in pads_of.items() if any(of_axis)}
    if not can_map(value.device, (value.shape[d] for d in pads_of)):
        return None
    fill = float(bool(number)) if value.dtype == torch.bool else rounded(float(number), value.dtype)
    maps = {d: AxisMap.choosing(sizes[d], range(-before, sizes[d] + after)) for d, (before, after) in pads_of.items()}
    return indexed(graph, "pad", typed(value), view, maps, fill)


def rounded(number: float, dtype: torch.dtype) -> float:
    """The number as a tensor of this type has it."""
    with real_tensors():
        return torch.tensor(number, dtype=dtype).item()


def _roll(graph: Graph, value: Tensor, view: View, shifts: Sequence[int], dims: Sequence[int] = ()) -> View | None:
    """Rule of roll; without dimensions, of tensors of one."""
    sizes = view.layout.sizes
    if not dims and len(sizes) != 1:
        return None
    dims = dims or (0,)
    if not can_map(value.device, (sizes[dim] for dim in dims)):
        return None
    maps: Maps = {}
    for shift, dim in zip(shifts, dims, strict=True):
        d = dim % len(sizes)
        rolled = AxisMap.choosing(sizes[d], ((i - shift) % sizes[d] for i in range(sizes[d])))
        maps[d] = maps[d].then(rolled) if d in maps else rolled
    return indexed(graph, "roll", typed(value), view, maps)


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
        if not can_map(value.device, value.shape[-len(pads) // 2 :]):
            return None
        return indexed(graph, name, typed(value), view, maps(view.layout.sizes, pads))

    def backward(graph: Graph, value: Tensor, grad: View, view: View, pads: Sequence[int]) -> View | None:
        if not can_map(value.device, grad.layout.sizes[-len(pads) // 2 :]):
            return None
        transposed = {d: axis_map.transposed() for d, axis_map in maps(view.layout.sizes, pads).items()}
        return indexed(graph, f"{name}_backward", typed(value), grad, transposed)

    return forward, backward


def _reflected(i: int, size: int) -> int:
    return -i if i < 0 else 2 * (size - 1) - i if i >= size else i


def _replicated(i: int, size: int) -> int:
    return min(max(i, 0), size - 1)


def _repeat(graph: Graph, value: Tensor, view: View, counts: Sequence[int]) -> View | None:
    """Rule of repeat."""
    missing = len(counts) - len(view.layout.sizes)
    sizes, strides = (1,) * missing + view.layout.sizes, (0,) * missing + view.layout.strides
    whole = View(view.value, Layout(sizes, strides, view.layout.offset))
    repeated = [d for d, count in enumerate(counts) if count != 1]
    if not value.numel() or not can_map(value.device, (value.shape[d] for d in repeated)):
        return None
    maps = {d: AxisMap.choosing(sizes[d], (i % sizes[d] for i in range(value.shape[d]))) for d in repeated}
    return indexed(graph, "repeat", typed(value), whole, maps)


RULES: dict = {
    constant_pad: _constant_pad,
    aten.roll.default: _roll,
    aten.repeat.default: _repeat,
}
for _name, _places in (("reflection_pad", _reflected), ("replication_pad", _replicated)):
    for _rank in (1, 2, 3):
        _forward, _backward = _padding(_places, _name)
        RULES[getattr(aten, f"{_name}{_rank}d").default] = _forward
        RULES[getattr(aten, f"{_name}{_rank}d_backward").default] = _backward
