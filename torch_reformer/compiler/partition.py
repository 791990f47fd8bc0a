"""Which values a forward saves for its backward: PyTorch's minimum cut, and what is known better here."""

from __future__ import annotations

from torch import Tensor
from torch._functorch import config as functorch_config
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from . import dropout
from .early_gradients import compute_early
from .gradient_orders import order_gradients
from .memory_budget import partition_within_budget
from .memory_formats import is_element_wise, settle
from .sources import share_sources, size_of

_MUCH = 8  # elements of a result for each of its operands


def partition(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    if all(isinstance(each, int) for node in joint.graph.nodes for each in _strides(node)):
        order_gradients(joint, options["num_fwd_outputs"])
        settle(joint, both_passes=True)  # alike, so that what is saved has one order
    if functorch_config.donated_buffer:  # else a backward may run again with what the forward saved
        compute_early(joint)
    dropout.save_keys(joint)
    _repeat_broadcasts(joint)
    share_sources(joint)
    return partition_within_budget(joint, inputs, **options)


def _repeat_broadcasts(joint: GraphModule) -> None:
    """Has element-wise results that are far larger than their operands (a comparison of a row with a column, say)
    computed again in the backward."""
    for node in joint.graph.nodes:
        if node.op == "call_function" and "recompute" not in node.meta and size_of(node):
            if is_element_wise(node) and _MUCH * sum(map(size_of, node.all_input_nodes)) < size_of(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _strides(node: Node) -> tuple:
    value = node.meta.get("val")
    return value.stride() if isinstance(value, Tensor) else ()
