"""Statistics of norms of 16-bit tensors: give them the data types that they have in eager mode, and do not round them
for the backward. PyTorch's decompositions round statistics that norms on CPUs save to the input's type."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ...runtime.dtypes import NARROW

aten = torch.ops.aten
_NORMS = (
    *(aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional),
    *(aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update, aten._batch_norm_with_update_functional),
    *(aten._batch_norm_no_update, aten.native_layer_norm),
)


def statistics_type(input: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """Data type of a norm's saved statistics: the input's, or fp32 if that is 16-bit and a parameter's differs."""
    types = {parameter.dtype for parameter in parameters if parameter is not None}
    return torch.float32 if input.dtype in NARROW and types - {input.dtype} else input.dtype


def _with_eager_statistics(rule: Callable) -> Callable:
    """A norm's decomposition that widens 16-bit inputs on CPUs, and rounds the statistics to eager mode's types."""

    def norm(input: Tensor, *args, **kwargs):
        if input.device.type != "cpu" or input.dtype not in NARROW:
            return rule(input, *args, **kwargs)
        parameters = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        dtype = statistics_type(input, *parameters)
        result, mean, rstd, *others = rule(input.float(), *args, **kwargs)
        return result.to(input.dtype), mean.to(dtype), rstd.to(dtype), *others

    return norm


def _with_wide_statistics(rule: Callable) -> Callable:
    """Layer norm's backward with its 16-bit statistics widened: it computes in their type."""

    def backward(grad: Tensor, input: Tensor, sizes, mean: Tensor, rstd: Tensor, *args):
        mean, rstd = (value.float() if value.dtype in NARROW else value for value in (mean, rstd))
        return rule(grad, input, sizes, mean, rstd, *args)

    return backward


def changed(table: dict) -> dict:
    """Replacements of the norms' decompositions in a table of PyTorch's."""
    changes = dict.fromkeys(_NORMS, _with_eager_statistics) | {aten.native_layer_norm_backward: _with_wide_statistics}
    operators = {
        op: getattr(op, "overloadpacket", None) for op in table if getattr(op, "_overloadname", "out") != "out"
    }
    return {op: changes[packet](table[op]) for op, packet in operators.items() if packet in changes}


def keep_statistics_wide(joint: GraphModule) -> None:
    """Make a norm's backward read its statistics as they were before they were rounded for the user."""
    for node in joint.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        rounded = _without_detach(node.args[0])
        if rounded.target is not aten._to_copy.default or not _is_part_of_norm(rounded):
            continue
        wide = rounded.args[0]
        if wide.meta["val"].dtype == node.meta["val"].dtype:
            node.replace_all_uses_with(wide)
            joint.graph.erase_node(node)


def _is_part_of_norm(node: Node) -> bool:
    operator = node.meta.get("original_aten")
    return getattr(operator, "overloadpacket", None) in (*_NORMS, aten.native_group_norm)


def _without_detach(node: Node) -> Node:
    while node.target in (aten.detach.default, aten.alias.default):
        node = node.args[0]
    return node
