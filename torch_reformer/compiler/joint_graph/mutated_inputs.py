"""Inputs that a graph changes in place. AOTAutograd's partition takes an input for the same in the backward as in the
forward, and computes again from it what it does not save: what is computed of an input before it changes is saved
instead, as eager PyTorch saves it."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    AOTOutput,
    InputMutationAOTOutput,
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
)
from torch._functorch.partitioners import must_recompute
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy


def save_reads_of_mutated_inputs(joint: GraphModule) -> None:
    """Marks what the partition has to save, but nothing that a checkpoint computes again: it reads what is there then,
    as in eager PyTorch. A view is no copy and is not marked: where the backward needs it, the version check raises."""
    changed_afterwards = set(map(_mutated_input, joint.graph.output_node().meta.get("desc", ()))) - {None}
    for placeholder in joint.graph.find_nodes(op="placeholder"):
        reads = list(_reads(placeholder))
        is_written = any(_writes(node, view) for node, view in reads)
        if is_written or placeholder.meta.get("desc") in changed_afterwards:
            for node, _ in reads:
                must_save(node)


def must_save(node: Node) -> None:
    """Has the forward save the node's result if the backward needs it, unless a checkpoint computes it again."""
    if not must_recompute(node):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _mutated_input(output: AOTOutput | None) -> AOTInput | None:
    """The input that gets a result of the graph after its run: one with a gradient, say."""
    if isinstance(output, InputMutationAOTOutput):
        return output.mutated_input
    if isinstance(output, SubclassGetAttrAOTOutput) and (base := _mutated_input(output.base)) is not None:
        return SubclassGetAttrAOTInput(base, output.attr)
    return None


def _reads(tensor: Node) -> Iterator[tuple[Node, Node]]:
    """Operations that compute something of a tensor's memory, each with the view of it that it takes."""
    for user in tensor.users:
        if user.target is operator.getitem or is_view(user):
            yield from _reads(user)
        elif user.op == "call_function":
            yield user, tensor


def is_view(node: Node) -> bool:
    return getattr(node.target, "is_view", False) or node.target is torch.ops.aten._unsafe_view.default


def _writes(node: Node, tensor: Node) -> bool:
    """True if the operator changes this argument in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        argument.alias_info is not None and argument.alias_info.is_write and value is tensor
        for argument, value in zip(schema.arguments, node.args, strict=False)
    )
