"""Flips, which two after another undo."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ir.axis_map import AxisMap
from ..ir.fake_tensors import typed
from ..ir.graph import Call, Graph, Indexed, Map, View
from ..ir.through_maps import can_map
from . import pointwise
from .indexed import indexed
from .reduced import mapped

_FLIP = torch.ops.aten.flip.default
_CLONE = pointwise.RULES[torch.ops.aten.clone.default]


def _flip(graph: Graph, value: Tensor, view: View, dims: Sequence[int]) -> View | None:
    """Rule of flip."""
    sizes = view.layout.sizes
    over = {dim % len(sizes) for dim in dims} if sizes else set()
    if (source := unflipped(graph, view, over)) is not None and source.value.dtype == value.dtype:
        if (copy := _CLONE(graph, value, source)) is not None:
            return copy
    if not can_map(value.device, (sizes[d] for d in over)):
        return None
    return indexed(graph, "flip", typed(value), view, {d: _reversed(sizes[d]) for d in over})


def _reversed(size: int) -> AxisMap:
    return AxisMap.choosing(size, range(size)[::-1])


def flipped(graph: Graph, value: Tensor, view: View, d: int) -> View:
    """The view in the opposite order along a dimension, as a result like `value`."""
    if (result := _flip(graph, value, view, [d])) is not None:
        return result
    (result,) = graph.add(Call(_FLIP, (view, [d]), {}), [typed(value)])
    return View(result, result.layout)


def unflipped(graph: Graph, view: View, over: set[int]) -> View | None:
    """The source of a view that is its flip over just these dimensions, perhaps negated; None for other views."""
    maker = view.value.maker
    if not over or not view.is_full or view.layout != view.value.layout:
        return None
    if isinstance(maker, Call) and maker.operator is _FLIP:
        source, dims = maker.args
        return source if {dim % len(source.layout.sizes) for dim in dims} == over else None
    if isinstance(maker, Map) and maker.name == "neg":
        (operand,) = maker.inputs
        source = unflipped(graph, operand, over)
        return source and mapped(graph, "neg", maker.expression, [source], view.value.dtype)
    if not isinstance(maker, Indexed) or {d for d, axis_map in enumerate(maker.maps) if axis_map} != over:
        return None
    (source,) = maker.inputs
    return source if all(maker.maps[d] == _reversed(source.layout.sizes[d]) for d in over) else None


RULES = {_FLIP: _flip}
