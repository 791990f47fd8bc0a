"""Call PyTorch's convolution in place of this package's, which modules swapped by convert() call. So both give the same
plan: autograd asks PyTorch's convolution for both gradients at once."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

_OWN = torch.ops.reformer.conv2d, torch.ops.reformer.conv2d.default


def replace_own_convolutions(module: GraphModule) -> None:
    """Change Dynamo's graph."""
    calls = [call for target in _OWN for call in module.graph.find_nodes(op="call_function", target=target)]
    for call in calls:
        call.target = torch.conv2d
    if calls:
        module.recompile()
