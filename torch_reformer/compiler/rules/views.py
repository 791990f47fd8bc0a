"""Operators that only look at memory in another way for these arguments, though they may compute something."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..fakes import layout_of
from ..ir import Graph, Layout, View

aten = torch.ops.aten


def _as_strided_scatter(
    graph: Graph, value: Tensor, into: View, source: View, size: Sequence[int], stride: Sequence[int], offset=None
) -> View | None:
    """What replaces every element: as in the gradient of an average over images, whose strides PyTorch settles."""
    written, whole = Layout(tuple(size), tuple(stride)), layout_of(value)
    if offset or not written.is_dense or not whole.is_dense or written.numel != whole.numel:
        return None
    if not written.matches(Layout(source.layout.sizes, source.layout.strides)):
        return None
    return View(source.value, Layout(whole.sizes, whole.strides, source.layout.offset))


RULES = {aten.as_strided_scatter.default: _as_strided_scatter}
