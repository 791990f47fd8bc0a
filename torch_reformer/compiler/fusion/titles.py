"""Titles of kernels and calls: their lines in reports, and the names of their ranges in PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...runtime.sizes import estimate
from ..ir.custom_ops import add_product
from ..ir.graph import Call, ConvGrads, Map, Operation, View
from ..ir.product import Product
from .group import FusionGroup

_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, add_product.overloadpacket)
_MOST_NAMED = 8  # operations in a title


def title(kind: str, names: Sequence[str]) -> str:
    """The kind of a kernel or the name of a call, and what it computes, such as "stitch: mul, add, relu"."""
    more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return f"{kind}: {', '.join([*names[:_MOST_NAMED], *more])}" if names else kind


def kind_and_operations(group: FusionGroup | Operation) -> tuple[str, list[str]]:
    """The kind of a group's kernel, or the name of a call, and its operations, in brackets those that another kernel
    computes, too. Those of a product that PyTorch computes are none."""
    if not isinstance(group, FusionGroup):
        return name(group), list(_gradients(group))
    names = [f"[{name(member)}]" for member in group.recomputed] + [name(member) for member in group.members]
    if not isinstance(group.anchor, Product):
        return "conv" if group.anchor else "stitch", names
    if group.anchor.is_call(group.operations):
        return "aten::addmm" if group.operations else "aten::mm", []
    return "product", names[1:]


def name(operation: Operation) -> str:
    if isinstance(operation, Call):
        return operation.operator.name()
    return operation.name if isinstance(operation, Map) else operation.text().split("(")[0]


def product_sizes(operation: Operation) -> list[str]:
    """Sizes of a matrix product as a text "rows x depth x columns" without spaces; empty for other operations."""
    if isinstance(operation, Product):
        first, second = operation.matrices
    elif isinstance(operation, Call) and operation.operator.overloadpacket in _PRODUCTS:
        *_, first, second = (operand for operand in operation.args if isinstance(operand, View))
    else:
        return []
    return ["x".join(str(estimate(size)) for size in (*first.layout.sizes, second.layout.sizes[1]))]


def _gradients(operation: Operation) -> tuple[str, ...]:
    if not isinstance(operation, ConvGrads):
        return ()
    return tuple(name for name, wanted in zip(("input", "weight"), operation.wanted, strict=True) if wanted)
