"""Operators that no plan computes, and why: PyTorch runs them between the plans of a graph's other operators
(lowering/split.py)."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.fx import Node

from ..ir.fake_tensors import Unsupported, is_plain, typed
from ..ir.fx_utils import is_operator, values_of

aten = torch.ops.aten
_QUANTISE = ("aten::quantize_per_", "aten::_empty_affine_", "aten::_empty_per_channel_", "aten::_make_per_")


def why_unplanned(node: Node) -> str | None:
    """Why no plan computes the result of a call whose operands a plan has; None if one can."""
    target, value = node.target, node.meta.get("val")
    if isinstance(value, (int, float, bool)):
        return None  # arithmetic of sizes
    if not is_operator(node):
        return f"{target} is no operator"
    if "val" not in node.meta and target._schema.returns:
        return f"nothing is known of what {target} gives"
    if quantises(node):
        return f"{target.name()} gives a quantised tensor"
    returned = target._schema.returns
    values = [] if not returned else list(value) if len(returned) != 1 else [value]
    if reason := why_unknown(values_of(node)):
        return f"{target.name()} gives {reason}"
    for result in values:
        if len(values) == 1 and not isinstance(result, (Tensor, list, tuple)) and result is not None:
            return f"{target.name()} gives a result of the type {type(result).__name__}"
    if is_view(node):
        dtype = node.args[0].meta["val"].dtype
        if any(tensor.dtype != dtype for tensor in values_of(node)):
            return f"{target.name()} looks at memory in another data type"
    return None


def why_unknown(values: Iterable) -> str | None:
    """Why a plan has no value like one of these fake ones, as the end of a sentence; None if it has."""
    for leaf in values:
        if isinstance(leaf, Tensor):
            if not is_plain(leaf):
                return "sparse, quantised or a lazy conjugate"
            try:
                typed(leaf)
            except Unsupported as reason:
                return f"unknown: {reason}"
        elif not isinstance(leaf, (int, float, bool)) and leaf is not None:
            return f"of the type {type(leaf).__name__}"
    return None


def is_getitem(node: Node) -> bool:
    """True for an element of a list of results."""
    return node.target is operator.getitem


def is_view(node: Node) -> bool:
    """True for an operator that only looks at its first argument's memory in another way."""
    if node.target is aten._unsafe_view.default:
        return True
    if not is_operator(node):
        return False
    infos = [returned.alias_info for returned in node.target._schema.returns]
    if not any(infos) or any(info is not None and info.is_write for info in infos):
        return False
    return bool(node.args) and isinstance(node.args[0], Node)


def is_complex(node: Node) -> bool:
    """True if the node has complex numbers, of which plans only have calls."""
    values = (value for each in (node, *node.all_input_nodes) for value in values_of(each))
    return any(isinstance(value, Tensor) and value.is_complex() for value in values)


def quantises(node: Node) -> bool:
    """True if the result is quantised. Fake ones are plain, so these operators are known by their names."""
    return is_operator(node) and node.target.name().startswith(_QUANTISE)


def dequantises(node: Node) -> bool:
    """True if the result is not quantised, though an operand is."""
    return node.target in (aten.dequantize.self, aten.int_repr.default)
