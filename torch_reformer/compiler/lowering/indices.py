"""Indices along a dimension, by which programs choose between operands."""

from __future__ import annotations

import torch
from torch import Tensor

from ...program.interpreter import computed_type
from ..ir.graph import Call, Graph, Typed, View
from ..ir.layout import Layout


def indices(graph: Graph, count: int, like: Tensor) -> View:
    """The numbers from 0 to `count`, in the precision in which programs compute tensors like this one."""
    wide = computed_type(like.dtype)
    layout = Layout((count,), (1,))
    arange = Call(torch.ops.aten.arange.default, (count,), {"dtype": wide, "device": like.device})
    (numbers,) = graph.add(arange, [Typed(layout, wide, like.device)])
    return View(numbers, layout)
