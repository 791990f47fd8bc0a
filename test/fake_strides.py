"""Strides that the compiler's rewrites say tensors have, against PyTorch's."""

import torch
from torch.fx import GraphModule


def check_strides(graph: GraphModule) -> None:
    """Check that each operator gives its fake value's strides for its operands' fake values."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
            with node.meta["val"].fake_mode:
                assert node.target(*args, **kwargs).stride() == node.meta["val"].stride()
