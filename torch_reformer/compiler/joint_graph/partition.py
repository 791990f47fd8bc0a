"""Which values a forward saves for its backward: PyTorch's minimum cut, and what is known better here."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..decompositions.norms import keep_statistics_wide
from ..ir.fake_tensors import Unsupported
from ..ir.fx_utils import base_of, is_element_wise, is_view, size_of
from ..ir.gather import OPERATORS
from ..ir.stages import attempted, optional
from ..lowering.reductions import RULES as REDUCTIONS
from . import save_random
from .gradient_strides import set_gradient_strides
from .hoist_loss_gradients import hoist_column_sums, hoist_loss_gradients
from .max_pool_indices import replace_max_pool_indices
from .memory_budget import partition_within_budget
from .mutated_inputs import save_reads_of_mutated_inputs
from .pad_mm import pad_before_saving, pad_mm
from .propagate_memory_format import propagate_memory_format
from .rematerialize import rematerialize
from .split_addmm import split_addmm
from .user_casts import mark_user_casts

aten = torch.ops.aten
_EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
_MUCH = 8  # elements of a result for each of its operands


def partition(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    try:
        return attempted(lambda: _partition(joint, inputs, **options), joint)
    except Unsupported as why:
        warnings.warn(f"what a forward saves for its backward is PyTorch's choice: {why}", stacklevel=2)
        return default_partition(joint, inputs, **options)


def _partition(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    mark_user_casts(joint)
    keep_statistics_wide(joint)
    optional(replace_max_pool_indices, joint)
    is_static = all(isinstance(each, int) for node in joint.graph.nodes for each in _strides(node))
    if is_static:
        optional(split_addmm, joint)
        optional(set_gradient_strides, joint, options["num_fwd_outputs"])
        optional(propagate_memory_format, joint, True)  # alike, so that what is saved has one order
    if functorch_config.donated_buffer:  # else a backward may run again with what the forward saved
        optional(hoist_loss_gradients, joint)
    if is_static:
        optional(pad_mm, joint)
    save_reads_of_mutated_inputs(joint)
    save_random.save_random(joint)
    _save_what_has_extremes(joint)
    optional(_repeat_broadcasts, joint)
    optional(_look_up_again, joint)
    optional(rematerialize, joint)
    forward, backward = partition_within_budget(joint, inputs, **options)
    optional(hoist_column_sums, forward, backward)
    optional(pad_before_saving, forward, backward)
    return forward, backward


def _save_what_has_extremes(joint: GraphModule) -> None:
    """Has what a gradient compares with its maximum saved: computed again by another kernel, which may round products
    that are added elsewhere, it might equal its maximum nowhere."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        one, other = (base_of(each) for each in node.args)
        for extreme, of in ((one, other), (other, one)):
            if extreme.target in _EXTREMES and base_of(extreme.args[0]) is of and of.op == "call_function":
                of.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)  # a checkpoint computes both again


def _repeat_broadcasts(joint: GraphModule) -> None:
    """Has element-wise results that are far larger than their operands (a comparison of a row with a column, say)
    computed again in the backward."""
    for node in joint.graph.nodes:
        if node.op == "call_function" and "recompute" not in node.meta and size_of(node):
            if is_element_wise(node) and _MUCH * sum(map(size_of, node.all_input_nodes)) < size_of(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _look_up_again(joint: GraphModule) -> None:
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


def _strides(node: Node) -> tuple:
    value = node.meta.get("val")
    return value.stride() if isinstance(value, Tensor) else ()
