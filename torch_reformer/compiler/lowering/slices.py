"""Rules of slice_scatter, which replaces a slice of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import program as p
from ...program import Value as Expression
from ..ir.axis_map import AxisMap
from ..ir.fake_tensors import layout_of, typed
from ..ir.graph import Call, Graph, Map, View
from ..ir.index_maps import index_map_of, operand_maps
from ..ir.iteration_space import find_space
from ..ir.layout import Layout
from ..ir.through_maps import can_map
from . import pointwise
from .indexed import as_float, indexed, rounded
from .indices import indices

aten = torch.ops.aten


def _slice_scatter(graph: Graph, value: Tensor, base: View, source: View, dim=0, start=None, end=None, step=1):
    """Rule of slice_scatter: the source with a number around it, read through a map; or a choice between source and
    base by the index."""
    d, size = dim % len(base.layout.sizes), base.layout.sizes[dim]
    if not can_map(value.device, (size,)):  # also for a size of symbols
        return None
    replaced = range(size)[start:end:step]
    if not replaced:
        return pointwise.RULES[aten.clone.default](graph, value, base)
    if not layout_of(value).is_dense:
        return None
    source = _copied(source)
    if source.value.dtype != value.dtype:
        return None
    places = {i: place for place, i in enumerate(replaced)}
    scattered = {d: AxisMap.choosing(source.layout.sizes[d], (places.get(i, -1) for i in range(size)))}
    if (number := number_of(base)) is not None:
        return indexed(graph, "slice_backward", typed(value), source, scattered, number)
    if step != 1 or len(replaced) == size or not pointwise.moves(graph, [base], value):
        return None
    if (number := number_of(source)) is not None:
        part: View | None = pointwise.full(graph, number, value)
    else:
        part = indexed(graph, "part", typed(value), source, scattered)
    return None if part is None else _chosen(graph, value, base, part, d, replaced)


def _chosen(graph: Graph, value: Tensor, base: View, part: View, d: int, replaced: range) -> View | None:
    """The part where the index is one of the replaced ones, else the base. None if no program reads all of it."""
    layout = part.layout
    along = Layout(layout.sizes, tuple(int(other == d) for other in range(len(layout.sizes))))
    index_maps = {index_map_of(layout, along), index_map_of(layout, base.layout)}
    index_maps |= {index_map for _, index_map in operand_maps(part.value.maker)}
    if find_space(layout.numel, index_maps, set()) is None:
        return None

    def choice(index: Expression, part: Expression, base: Expression) -> Expression:
        return p.select(index < replaced.start, base, p.select(index < replaced.stop, part, base))

    numbers = View(indices(graph, layout.sizes[d], value).value, along)
    return pointwise.add_map(graph, "slice_scatter", choice, [numbers, part, base], value)


def _copied(view: View) -> View:
    """The source of a copy in another layout; the view itself if it is none."""
    maker = view.value.maker
    if view.layout != view.value.layout:
        return view
    if isinstance(maker, Call) and maker.operator is aten.copy.default:
        source = maker.args[1]
    elif isinstance(maker, Map) and maker.name == "copy":
        (source,) = maker.inputs
    else:
        return view
    if source.value.dtype != view.value.dtype or source.value.device != view.value.device:
        return view
    return pointwise.expanded(source, view.layout.sizes) or view


def number_of(view: View) -> float | None:
    """The number that all elements of a view are, if that is known and fp32 holds it."""
    maker = view.value.maker
    if not isinstance(maker, Map) or maker.inputs or not maker.name.startswith("full["):
        return None
    number = rounded(float(maker.name.removeprefix("full[").removesuffix("]")), view.value.dtype)
    return number if as_float(number) == number else None


RULES = {aten.slice_scatter.default: _slice_scatter}
