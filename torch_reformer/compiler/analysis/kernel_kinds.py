"""How long a kernel is expected to take on a GPU: to start, and then what its bytes and its arithmetic add.

How much they add is fitted for each kind of kernel to timings on an H100 (benchmarks/fit_plan_costs.py writes
costs.json), as multiples of what the data sheet's figures give; so it serves other GPUs, too."""

from __future__ import annotations

from ..fusion.group import FusionGroup
from ..ir.device_model import kind_of_operator
from ..ir.graph import Call, Casts, Conv, ConvGrads, Operation, Reduce


def kind_of(group: FusionGroup | Operation) -> str:
    """What kernels are alike in their costs: those of this group or call are."""
    if isinstance(group, FusionGroup):
        if group.anchor:
            return kind_of(group.anchor)
        reduces = any(isinstance(each, Reduce) and each not in group.per_row for each in group.members)
        words = ["stitch", *(["rows"] if group.rows else []), *(["columns"] if reduces else [])]
        return " ".join([*words, *(["transposed"] if group.transposed else [])])
    if isinstance(group, (Conv, ConvGrads)):
        return f"{'conv' if isinstance(group, Conv) else 'conv grads'} {_filters(group)}"
    if isinstance(group, Casts):
        return "casts"
    if isinstance(group, Call):
        return kind_of_operator(group.operator)
    return "stitch"


def _filters(operation: Conv | ConvGrads) -> str:
    _, channels, height, width = operation.weight.layout.sizes
    if operation.geometry.groups > 1:
        return "depthwise" if channels == 1 else "grouped"
    return "pointwise" if height == width == 1 else "dense"
