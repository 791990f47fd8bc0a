"""Instance norm as group norm with a channel in each group (decompositions/group_norm.py). PyTorch's own makes one
image of the batch, for which images in channels_last are copied, forward and backward. Group norm's copy of them is one
that the compiler leaves out where nothing needs it (joint_graph/propagate_memory_format.py)."""

from __future__ import annotations

import inspect
from operator import getitem

import torch
from torch.fx import GraphModule
from torch.nn.functional import instance_norm

from .attention_calls import is_static

_SIGNATURE = inspect.signature(instance_norm)
_STATISTICS = "running_mean", "running_var"


def replace_instance_norm(module: GraphModule) -> None:
    """Change Dynamo's graph where statistics are the input's alone. The result has the input's data type, as instance
    norm's: autocast has no rule for the operator, unlike for torch.nn.functional.group_norm."""
    calls = module.graph.find_nodes(op="call_function", target=instance_norm)
    for call in calls:
        arguments = _SIGNATURE.bind(*call.args, **call.kwargs)
        arguments.apply_defaults()
        given = arguments.arguments
        input = given["input"]
        if not given["use_input_stats"] or any(given[name] is not None for name in _STATISTICS) or not is_static(input):
            continue
        batch, channels, *sizes = input.meta["example_value"].shape
        positions = torch.Size(sizes).numel()
        if positions > 1 and batch and channels:  # PyTorch raises for one position
            with module.graph.inserting_before(call):
                contiguous = module.graph.call_method("contiguous", (input,))
                numbers = batch, channels, positions, channels, given["eps"]
                operands = contiguous, given["weight"], given["bias"], *numbers
                norm = module.graph.call_function(torch.native_group_norm, operands)
                result = module.graph.call_function(getitem, (norm, 0))
            result.meta = dict(call.meta)
            call.replace_all_uses_with(result)
            module.graph.erase_node(call)
    if calls:
        module.recompile()
