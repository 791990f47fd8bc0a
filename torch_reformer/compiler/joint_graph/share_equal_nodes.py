"""Compute equal nodes of a joint graph once, before PyTorch's partition. Its own elimination of common
subexpressions is off: it copies the graph, and merges random operators that its list lacks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node

from .save_random import is_random

aten = torch.ops.aten


def share_equal_nodes(joint: GraphModule) -> None:
    """Replace each node by an earlier one of the same operator and arguments, unless an operator between them writes.
    Results of the graph and nodes that share memory with one stay, since the caller may write to them."""
    joint.graph.eliminate_dead_code()
    (output,) = joint.graph.find_nodes(op="output")
    returned = {_memory(node) for node in output.all_input_nodes} - {None}
    known: dict[tuple, Node] = {}
    for node in joint.graph.nodes:
        if _writes(node):
            known.clear()
        elif node.op == "call_function" and _is_repeatable(node) and _memory(node) not in returned:
            try:
                earlier = known.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
            except TypeError:  # an argument that has no hash
                continue
            if earlier is not node:
                node.replace_all_uses_with(earlier)
                joint.graph.erase_node(node)


def _memory(node: Node) -> int | None:
    """Number of the memory that a node's fake result has; None if it has none, or several as sparse tensors do."""
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) and value.layout == torch.strided else None


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_repeatable(node: Node) -> bool:
    """True if the operator gives equal results for equal arguments, as far as is known."""
    if isinstance(node.target, HigherOrderOperator) or is_random(node):
        return False
    if torch.Tag.data_dependent_output in getattr(node.target, "tags", ()):
        return False
    return getattr(node.target, "overloadpacket", None) is not aten.empty


def _key(argument):
    """A key that is equal for equal arguments. 1, 1.0 and True are not equal, nor are 0.0 and -0.0."""
    if isinstance(argument, list | tuple):
        return type(argument), *map(_key, argument)
    if isinstance(argument, dict):
        return tuple((name, _key(value)) for name, value in argument.items())
    return (type(argument), argument.hex()) if isinstance(argument, float) else (type(argument), argument)
