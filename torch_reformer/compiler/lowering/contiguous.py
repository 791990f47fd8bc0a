"""Tensors whose elements lie in another order than those they are computed with, and that no program reads so: copied
first, once for all that read them so, as PyTorch's own norms do it. Then the rest is one kernel."""

from __future__ import annotations

import math

import torch

from ..ir.graph import Call, Graph, Value, View
from ..ir.iteration_space import index_map_of, is_strided
from ..ir.layout import Layout

_contiguous = torch.ops.reformer._contiguous.default


def in_order(graph: Graph, view: View, layout: Layout) -> View:
    """The view with its elements in the order of this layout of the same sizes, and repeated where it repeats them. A
    part of a tensor stays as it is."""
    if not is_strided(index_map_of(layout, view.layout)) or view.elements != view.value.layout.numel:
        return view
    return _copy(graph, view, layout, graph.copies)


def copied(graph: Graph, view: View, layout: Layout) -> View:
    """A copy of its own of the view, so."""
    return _copy(graph, view, layout, {})


def _copy(graph: Graph, view: View, layout: Layout, known: dict[tuple[Value, Layout], Value]) -> View:
    dims = sorted(range(len(layout.sizes)), key=lambda d: -layout.strides[d])
    dims = [d for d in dims if layout.sizes[d] != 1 and view.layout.strides[d]]
    sizes = tuple(layout.sizes[d] for d in dims)
    ordered = Layout(sizes, tuple(view.layout.strides[d] for d in dims), view.layout.offset)
    strides = tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
    key = view.value, ordered
    if key not in known:
        call = Call(_contiguous, (View(view.value, ordered),), {})
        (known[key],) = graph.add(call, [(Layout(sizes, strides), view.value.dtype, view.value.device)])
    own = dict(zip(dims, strides, strict=True))
    return View(known[key], Layout(layout.sizes, tuple(own.get(d, 0) for d in range(len(layout.sizes)))))
