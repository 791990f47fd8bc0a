"""Running sums and products along rows.

Rows are along the dimension whose elements are adjacent. Kernels of GPUs have the whole row in registers, so longer
rows, other dimensions and single rows stay calls of PyTorch's. A gradient is a running sum from the rows' ends, which
PyTorch writes as one of a flipped tensor, flipped: both flips are taken into the operation.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ...runtime.dtypes import FLOATS
from ..ir.graph import Graph, Typed, View
from ..ir.index_maps import without
from ..ir.iteration_space import LONGEST_ROW, reduces_rows
from ..ir.scan import Scan
from .flips import flipped, unflipped
from .reduced import dense_in_floats, mapped, wide
from .reductions import COUNTED, in_floats, product_range, result_of
from .whole_numbers import MOST, WHOLE, note_range, range_of

aten = torch.ops.aten


def _scan(kind: str, graph: Graph, value: Tensor, view: View, dim: int, dtype=None) -> View | None:
    """Rule of cumsum and cumprod."""
    if not view.layout.sizes:
        return None
    d = dim % len(view.layout.sizes)
    if (source := unflipped(graph, view, {d})) is not None:
        result = _scanned(kind, graph, value, source, d, is_reversed=True)
        return result and flipped(graph, value, result, d)
    return _scanned(kind, graph, value, view, d, is_reversed=False)


def _scanned(kind: str, graph: Graph, value: Tensor, view: View, d: int, is_reversed: bool) -> View | None:
    if not _is_row(view, d):
        return None
    bounds = None
    if value.dtype in WHOLE and view.value.dtype not in FLOATS:
        bounds = _bounds(kind, graph, view, view.layout.sizes[d])
        operand = bounds and mapped(graph, "_to_copy", lambda x: x, [view], torch.float32)
    else:
        operand = in_floats(graph, value, view)
    operand = operand and dense_in_floats(graph, operand)
    if operand is None:
        return None
    type = Typed(operand.layout.packed, wide(operand), operand.value.device)
    (scan,) = graph.add(Scan(kind, operand, (d,), is_reversed), [type])
    result = result_of(graph, View(scan, type.layout), value, (), operand, *(COUNTED if bounds else ()))
    if result and bounds:
        note_range(graph, result, *bounds)
    return result


def _is_row(view: View, d: int) -> bool:
    """True if the dimension's elements are adjacent, also in a packed copy of the view, and a kernel has such rows."""
    layout = view.layout.packed
    if not layout.numel or layout.strides[d] != 1 or not view.layout.strides[d]:
        return False
    is_short = view.value.device.type == "cpu" or layout.sizes[d] <= LONGEST_ROW
    return is_short and reduces_rows(layout.numel, without(layout, (d,)))


def _bounds(kind: str, graph: Graph, view: View, width: int) -> tuple[float, float] | None:
    """The least and the most that a result can be; None if that may be more than fp32 holds."""
    if kind == "cumprod":
        return product_range(graph, view, width)
    bounds = range_of(graph, view)
    least, most = min(bounds.least * width, bounds.least), max(bounds.most * width, bounds.most)
    return (least, most) if max(-least, most) <= MOST else None


RULES = {
    aten.cumsum.default: functools.partial(_scan, "cumsum"),
    aten.cumprod.default: functools.partial(_scan, "cumprod"),
}
