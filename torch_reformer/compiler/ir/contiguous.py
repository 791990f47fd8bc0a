"""Copies of operands in another layout.

An operand whose order of memory no program reads beside that of the others is copied once for all operations that read
it in one layout, as PyTorch's own norms do it; the operations are one kernel then. Convolutions read dense operands.
"""

from __future__ import annotations

import math

import torch

from .graph import Call, Graph, Map, Typed, Value, View
from .index_maps import index_map_of, is_strided
from .iteration_space import has_space
from .layout import Layout

_contiguous = torch.ops.reformer._contiguous.default
Copies = dict[tuple[Value, Layout], Value]


def dense(graph: Graph, view: View, layout: Layout) -> View:
    """The view if its elements lie in memory as this dense layout has them, else a copy: by a Map, which is fused with
    what computes the view, where a program can read it."""
    if view.layout.matches(layout):
        return view
    value = view.value
    if (value.dtype == torch.float64 and value.device.type != "cpu") or not has_space([view], layout):
        return _copy(graph, view, layout, graph.copies)
    (result,) = graph.add(Map([view], "clone", lambda x: x), [Typed(layout, value.dtype, value.device)])
    return View(result, layout)


def in_order(graph: Graph, view: View, layout: Layout, known: Copies | None = None) -> View:
    """The view, copied to the layout's order of memory if it has another one; broadcast dimensions stay so. A view of
    only a part of a value is not copied.

    Args:
        layout: has the view's sizes.
        known: copies that come before; those of the graph while it is lowered, a pass has its own.
    """
    if not is_strided(index_map_of(layout, view.layout)) or view.elements != view.value.layout.numel:
        return view
    return _copy(graph, view, layout, graph.copies if known is None else known)


def copied(graph: Graph, view: View, layout: Layout) -> View:
    """Unshared contiguous copy of the view in `layout`."""
    return _copy(graph, view, layout, {})


def _copy(graph: Graph, view: View, layout: Layout, known: Copies) -> View:
    """Copy in the layout's order of memory, taken from `known` copies if it is there."""
    dims = sorted(range(len(layout.sizes)), key=lambda d: -layout.strides[d])
    dims = [d for d in dims if layout.sizes[d] != 1 and view.layout.strides[d]]
    sizes = tuple(layout.sizes[d] for d in dims)
    ordered = Layout(sizes, tuple(view.layout.strides[d] for d in dims), view.layout.offset)
    strides = tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
    key = view.value, ordered
    if key not in known:
        call = Call(_contiguous, (View(view.value, ordered),), {})
        (known[key],) = graph.add(call, [(Layout(sizes, strides), view.value.dtype, view.value.device)])
    stride_of = dict(zip(dims, strides, strict=True))
    stride_of |= {d: stride for d, stride in enumerate(layout.strides) if layout.sizes[d] == 1}
    return View(known[key], Layout(layout.sizes, tuple(stride_of.get(d, 0) for d in range(len(layout.sizes)))))
