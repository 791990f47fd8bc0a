"""Calls of attention in Dynamo's graph."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node

_ARGUMENTS = "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"


def attention_calls(graph: Graph) -> dict[Node, dict[str, Any]]:
    """The calls, each with its arguments by name."""
    nodes = graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    return {node: dict(zip(_ARGUMENTS, node.args, strict=False)) | node.kwargs for node in nodes}


def is_static(node: Any) -> bool:
    """True for the node of a tensor whose sizes and strides are known."""
    fake = node.meta.get("example_value") if isinstance(node, Node) else None
    return isinstance(fake, Tensor) and all(isinstance(number, int) for number in (*fake.shape, *fake.stride()))
