"""Kinds of kernels. A kernel's expected time (ir/device_model.py) is that of its start, its bytes and its arithmetic.
Their coefficients are fitted for each kind to timings on an H100 (benchmarks/fit_plan_costs.py writes ir/costs.json).
They are multiples of the times that the data sheet's figures give, so they serve other GPUs, too."""

from __future__ import annotations

from ..fusion.group import FusionGroup
from ..ir.device_model import kind_of_operator
from ..ir.graph import Call, Casts, Conv, ConvGrads, Operation, Reduce
from ..ir.product import Product


def kind_of(group: FusionGroup | Operation) -> str:
    """The kind of the kernel or call that computes this. Kernels of one kind share their coefficients."""
    if isinstance(group, FusionGroup):
        if group.anchor:
            return kind_of(group.anchor)
        reduces = any(isinstance(member, Reduce) and member not in group.per_row for member in group.members)
        words = ["stitch", *(["rows"] if group.rows else []), *(["columns"] if reduces else [])]
        return " ".join([*words, *(["transposed"] if group.transposed else [])])
    if isinstance(group, Product):
        return "product"
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
