"""Nodes of Dynamo's graph that change how operators run: autocast, and modes of autograd."""

from __future__ import annotations

from torch.fx import Node

_MODES = ("autocast", "grad", "inference")  # in the names of functions that do so


def is_mode(node: Node) -> bool:
    """True if operators behind the node may run in another mode than those before it."""
    return node.op == "call_function" and any(mode in str(node.target) for mode in _MODES)
