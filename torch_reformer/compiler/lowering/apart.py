"""Element-wise operators of slices with a step, whose columns lie apart in memory, as in rotary embeddings of pairs:
these are read through maps."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..ir.axis_map import AxisMap
from ..ir.graph import Graph, Typed, View
from ..ir.layout import Layout
from ..ir.through_maps import can_map
from . import pointwise, whole_comparisons
from .indexed import indexed

_MOST_APART = 8  # elements from one column to the next, so that some are read with one access of memory


def _over(rule: Callable) -> Callable:
    """The rule of an operator, with operands read through maps where no program reads them by strides."""

    def run(graph: Graph, value, *args, **kwargs):
        if isinstance(value, Tensor):
            args = [_read(graph, arg) if _has_columns(arg, value) else arg for arg in args]
        return rule(graph, value, *args, **kwargs)

    return run


def _has_columns(operand, value: Tensor) -> bool:
    """True for a view that does not repeat one element along the result's columns."""
    if not isinstance(operand, View):
        return False
    first = value.dim() - len(operand.layout.sizes)
    columns = [
        d for d, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)) if size > 1 and stride == 1
    ]
    return all(d >= first and operand.layout.sizes[d - first] > 1 for d in columns)


def _read(graph: Graph, view: View) -> View:
    """The result of an operation that reads the view through a map of its columns, if these lie apart; else the view
    itself."""
    sizes, strides = view.layout.sizes, view.layout.strides
    steps = {d: stride for d, (size, stride) in enumerate(zip(sizes, strides, strict=True)) if size > 1}
    d = min(steps, key=lambda d: steps[d], default=None)
    if d is None or not 1 < steps[d] <= _MOST_APART or view.elements == view.value.layout.numel:
        return view
    if not can_map(view.value.device, (sizes[d],)):
        return view
    size = (sizes[d] - 1) * steps[d] + 1

    def with_columns(numbers: tuple[int, ...], of_columns: int) -> tuple[int, ...]:
        return (*numbers[:d], of_columns, *numbers[d + 1 :])

    source = View(view.value, Layout(with_columns(sizes, size), with_columns(strides, 1), view.layout.offset))
    type = Typed(Layout(sizes, strides).packed, view.value.dtype, view.value.device)
    return indexed(graph, "slice", type, source, {d: AxisMap.choosing(size, range(0, size, steps[d]))}) or view


RULES = {target: _over(rule) for target, rule in (pointwise.RULES | whole_comparisons.RULES).items()}
