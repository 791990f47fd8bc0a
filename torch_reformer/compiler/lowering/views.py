"""Rules of operators that, for some arguments, only copy a tensor in another layout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ir.fake_tensors import layout_of
from ..ir.graph import Graph, View
from ..ir.layout import Layout
from . import pointwise

aten = torch.ops.aten


def _as_strided_scatter(
    graph: Graph, value: Tensor, into: View, source: View, size: Sequence[int], stride: Sequence[int], offset=None
) -> View | None:
    """Rule of aten.as_strided_scatter if it replaces every element: as in gradients of means over images, to which
    PyTorch gives their strides in this way."""
    written, whole = Layout(tuple(size), tuple(stride)), layout_of(value)
    # The offset counts from the beginning of the storage, which is known only of values that the graph computes.
    if offset is not None and (into.value.maker is None or offset != into.layout.offset):
        return None
    if not written.is_dense or not whole.is_dense or written.numel != whole.numel:
        return None
    if not written.matches(Layout(source.layout.sizes, source.layout.strides)):
        return None
    same = View(source.value, Layout(whole.sizes, whole.strides, source.layout.offset))
    return pointwise.RULES[aten.copy.default](graph, value, into, same)


RULES = {aten.as_strided_scatter.default: _as_strided_scatter}
