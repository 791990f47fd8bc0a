"""Marks for PyTorch's partition of a joint graph: what the forward saves for the backward, and what the backward
recomputes."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.fx_utils import REDUCTIONS, base_of, is_element_wise, is_view, size_of
from ..ir.gather import OPERATORS

aten = torch.ops.aten
_EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
_MUCH = 8  # elements of a result for each of its operands


def save_compared_extremes(joint: GraphModule) -> None:
    """Has what a gradient compares with its maximum saved: computed again by another kernel, which may round products
    that are added elsewhere, it might equal its maximum nowhere."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        one, other = (base_of(each) for each in node.args)
        for extreme, of in ((one, other), (other, one)):
            if extreme.target in _EXTREMES and base_of(extreme.args[0]) is of and of.op == "call_function":
                of.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)  # a checkpoint computes both again


def recompute_broadcasts(joint: GraphModule) -> None:
    """Has element-wise results that are far larger than their operands (a comparison of a row with a column, say)
    computed again in the backward."""
    for node in joint.graph.nodes:
        if node.op == "call_function" and "recompute" not in node.meta and size_of(node):
            if is_element_wise(node) and _MUCH * sum(map(size_of, node.all_input_nodes)) < size_of(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def recompute_gathers(joint: GraphModule) -> None:
    """Has rows of a table that is given, or has fewer elements than they, looked up again in the backward, if only
    programs read them: these read the table as they would what is saved (fusion/fuse_gather.py)."""
    for node in joint.graph.nodes:
        if node.target in OPERATORS and "recompute" not in node.meta:
            table = node.args[0]
            if (_given(table) or 0 < size_of(table) < size_of(node)) and _is_read_by_programs(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _given(node: Node) -> bool:
    return base_of(node).op == "placeholder"


def _is_read_by_programs(node: Node) -> bool:
    return all(
        _is_read_by_programs(user) if is_view(user) else is_element_wise(user) or user.target in REDUCTIONS
        for user in node.users
    )
