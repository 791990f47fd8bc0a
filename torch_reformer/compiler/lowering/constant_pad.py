"""Zeros behind each row of a matrix, or stack of matrices: what computes the rows writes them to where these are."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import constant_pad
from ..ir.graph import Call, Graph, Map, Typed, View
from ..ir.iteration_space import find_space, index_map_of, result_maps
from ..ir.layout import Layout


def rows_below(call: Call) -> bool:
    """Whether it adds rows of zeros, or zeros to a vector, at the end."""
    view, pads, *number = call.args
    dimensions = len(view.layout.sizes)
    return len(pads) == 2 * dimensions and not any(pads[:-1]) and pads[-1] > 0 and number in ([], [0], [0.0])


def _pad(graph: Graph, value: Tensor, view: View, pads, number=0) -> View | None:
    memory, dtype, source = layout_of(value), view.value.dtype, view.layout
    if len(pads) != 2 or pads[0] or pads[1] <= 0 or number or dtype not in FLOATS or not source.numel:
        return None
    if not value.is_contiguous() or dtype == torch.float64:
        return None
    layout = Layout(source.sizes, memory.strides)
    index_map = {index_map_of(layout, source)} | result_maps(layout)
    if layout.is_dense or find_space(layout.numel, index_map, set()) is None:  # dense: of one row
        return None
    (made,) = graph.add(Map([view], f"pad[{pads[1]}]", lambda x: x), [Typed(layout, dtype, view.value.device)])
    made.memory = memory
    return View(made, memory)


RULES = {constant_pad: _pad}
