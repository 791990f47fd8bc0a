"""Tell the user's casts from those of autocast and of PyTorch's decompositions, by the call in the user's code that an
operator comes from, which Dynamo records. After a cast of the user's a program goes on with the rounded values, as in
eager mode: split precision and error feedback use the difference. The other casts only save time, and programs need not
round there."""

from __future__ import annotations

import operator
from types import FunctionType

import torch
from torch.fx import GraphModule, Node

from ..ir.custom_ops import USER_CAST
from ..ir.fx_utils import base_of

aten = torch.ops.aten

_METHODS = ("to", "type", "type_as", "half", "bfloat16", "float", "double", "copy_")
_FUNCTIONS = (operator.setitem, aten._to_copy, aten.to, torch.ops.prims.convert_element_type)
_GRADIENTS = ("grad", "_autograd_grad")  # torch.autograd.grad and torch.func.grad, whose casts are not told apart


def mark_user_casts(module: GraphModule) -> None:
    """Mark the user's casts, and the casts of gradients that follow from them. If one cast of a tensor to a type is the
    user's, all its casts to that type are marked, as PyTorch may merge them."""
    casts_of: dict[tuple, list[Node]] = {}  # (tensor, type) -> casts
    for node in module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        casts_of.setdefault((base_of(node.args[0]), node.kwargs.get("dtype")), []).append(node)
    for casts in casts_of.values():
        if any(map(_is_user_cast, casts)):
            for node in casts:
                node.meta[USER_CAST] = True


def _is_user_cast(node: Node) -> bool:
    calls = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    if not calls:
        return USER_CAST in node.meta
    _, call = calls[-1]
    if call in _METHODS or getattr(call, "overloadpacket", call) in _FUNCTIONS:
        return True
    # A function into which Dynamo does not look.
    is_foreign = isinstance(call, FunctionType) and call.__module__.partition(".")[0] != "torch"
    return is_foreign or getattr(call, "__name__", None) in _GRADIENTS
