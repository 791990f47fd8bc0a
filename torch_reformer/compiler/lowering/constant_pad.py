"""Pads by a constant.

Pads of nothing, and negative ones, which crop, are copies. For zeros behind each row, the kernel that computes the rows
writes them to memory that has the zeros already.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import constant_pad
from ..ir.graph import Graph, Map, Typed, View
from ..ir.index_maps import index_map_of, result_maps
from ..ir.iteration_space import find_space
from ..ir.layout import Layout
from . import pointwise


def _pad(graph: Graph, value: Tensor, view: View, pads, number=0) -> View | None:
    """Rule of constant_pad_nd."""
    if all(pad <= 0 for pad in pads):
        return pointwise.RULES[torch.ops.aten.clone.default](graph, value, _cropped(view, pads))
    return _rows_with_zeros(graph, value, view, pads, number)


def _cropped(view: View, pads) -> View:
    """The view without so many elements before and behind each dimension, the last dimension first."""
    sizes, offset = list(view.layout.sizes), view.layout.offset
    for d, (before, behind) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
        sizes[-d] += before + behind
        offset -= before * view.layout.strides[-d]
    return View(view.value, Layout(tuple(sizes), view.layout.strides, offset))


def _rows_with_zeros(graph: Graph, value: Tensor, view: View, pads, number) -> View | None:
    """A Map whose result has zeros behind each row, or None."""
    memory, dtype, source = layout_of(value), view.value.dtype, view.layout
    if len(pads) != 2 or pads[0] or pads[1] <= 0 or number or dtype not in FLOATS or not source.numel:
        return None
    if not value.is_contiguous() or dtype == torch.float64:
        return None
    layout = Layout(source.sizes, memory.strides)
    index_maps = {index_map_of(layout, source)} | result_maps(layout)
    if layout.is_dense or find_space(layout.numel, index_maps, set()) is None:  # dense: there is one row
        return None
    (result,) = graph.add(Map([view], f"pad[{pads[1]}]", lambda x: x), [Typed(layout, dtype, view.value.device)])
    result.memory = memory
    return View(result, memory)


RULES = {constant_pad: _pad}
