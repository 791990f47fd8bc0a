"""Save what is computed from inputs that a graph changes in place. AOTAutograd's partition assumes that an input is the
same in the backward as in the forward, and recomputes from it what it does not save. What is computed from an input
before it changes is saved instead, as eager PyTorch saves it."""

from __future__ import annotations

import operator
from collections.abc import Iterator

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

from ..ir.fx_utils import shares_memory


def save_reads_of_mutated_inputs(joint: GraphModule) -> None:
    """Mark results that the partition has to save.

    What a checkpoint recomputes is not marked: it reads the input's later values, as in eager PyTorch. A view is no
    copy and is not marked either: if the backward needs it, the version check raises."""
    changed_afterwards = set(map(_mutated_input, joint.graph.output_node().meta.get("desc", ()))) - {None}
    for placeholder in joint.graph.find_nodes(op="placeholder"):
        reads = list(_reads(placeholder))
        is_written = any(_writes(node, view) for node, view in reads)
        if is_written or placeholder.meta.get("desc") in changed_afterwards:
            for node, _ in reads:
                must_save(node)


def must_save(node: Node) -> None:
    """Make the forward save the node's result if the backward needs it, unless a checkpoint recomputes it."""
    if not must_recompute(node):
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _mutated_input(output: AOTOutput | None) -> AOTInput | None:
    """The input to which AOTAutograd copies this result after the graph has run, as for inputs that require a
    gradient; None if there is none."""
    if isinstance(output, InputMutationAOTOutput):
        return output.mutated_input
    if isinstance(output, SubclassGetAttrAOTOutput) and (base := _mutated_input(output.base)) is not None:
        return SubclassGetAttrAOTInput(base, output.attr)
    return None


def _reads(tensor: Node) -> Iterator[tuple[Node, Node]]:
    """Operators that compute something from a tensor or its views, each with the view that it reads."""
    for user in tensor.users:
        if user.target is operator.getitem or shares_memory(user):
            yield from _reads(user)
        elif user.op == "call_function":
            yield user, tensor


def _writes(node: Node, tensor: Node) -> bool:
    """True if the operator changes this argument in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        argument.alias_info is not None and argument.alias_info.is_write and value is tensor
        for argument, value in zip(schema.arguments, node.args, strict=False)
    )
