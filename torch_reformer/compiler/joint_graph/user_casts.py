"""Casts that the user wrote, told from those of autocast and of PyTorch's decompositions by the user's call that an
operator comes from, which Dynamo records. A program goes on with what the former rounded, as in eager mode: split
precision and error feedback use the difference. The latter only save time, and need no rounding of their own."""

from __future__ import annotations

import operator
from types import FunctionType

import torch
from torch.fx import GraphModule, Node

from ..ir.custom_ops import USER_CAST

aten = torch.ops.aten

_METHODS = ("to", "type", "type_as", "half", "bfloat16", "float", "double", "copy_")
_FUNCTIONS = (operator.setitem, aten._to_copy, aten.to, torch.ops.prims.convert_element_type)
_GRADIENTS = ("grad", "_autograd_grad")  # torch.autograd.grad and torch.func.grad: of casts that are not told apart


def mark_user_casts(module: GraphModule) -> None:
    """Mark them, and casts of gradients that follow from them. Casts of one tensor to one type are all marked if one
    is: PyTorch may merge them."""
    of_tensor: dict[tuple, list[Node]] = {}
    for node in module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        of_tensor.setdefault((base_of(node.args[0]), node.kwargs.get("dtype")), []).append(node)
    for casts in of_tensor.values():
        if any(map(_is_user_cast, casts)):
            for node in casts:
                node.meta[USER_CAST] = True


def base_of(node: Node) -> Node:
    while getattr(node.target, "is_view", False):
        node = node.args[0]
    return node


def _is_user_cast(node: Node) -> bool:
    calls = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    if not calls:
        return USER_CAST in node.meta
    _, call = calls[-1]
    if call in _METHODS or getattr(call, "overloadpacket", call) in _FUNCTIONS:
        return True
    # A function that Dynamo does not look into.
    is_foreign = isinstance(call, FunctionType) and call.__module__.partition(".")[0] != "torch"
    return is_foreign or getattr(call, "__name__", None) in _GRADIENTS
