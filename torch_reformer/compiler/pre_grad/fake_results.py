"""Fake results of nodes of Dynamo's graph, which a rewrite adds, or whose operands it changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg


def fake_result(node: Node, mode: AbstractContextManager, changed: Mapping[Node, Any] | None = None) -> Any:
    """The node's result, computed of its operands' fake values.

    Args:
        mode: that of the fake values.
        changed: values that differ from the graph's.
    """
    known = changed or {}
    args, kwargs = map_arg((node.args, node.kwargs), lambda each: known.get(each, each.meta["example_value"]))
    with mode, torch.no_grad():
        call = getattr(args[0], node.target) if node.op == "call_method" else node.target
        return call(*args[node.op == "call_method" :], **kwargs)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_of(each)]
    return [value] if isinstance(value, Tensor) else []
