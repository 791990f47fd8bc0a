"""Rematerialise forward values in the backward from a tensor that it reads anyway, so that they are neither saved nor
read. The mask of a ReLU behind a batch norm is one: the norm's gradient needs the norm's input, and the mask follows
from that input, too."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.fx_utils import SUMS, VIEWS, bytes_of, is_element_wise, size_of
from ..ir.kernel_limits import SMALL

aten = torch.ops.aten

_MOST = 16  # operations of a value that is recomputed
_FEW = 16  # an operand counts as small if the value has at least so many times its elements


def rematerialize(joint: GraphModule) -> None:
    """Mark for AOTAutograd's partition which operations the backward recomputes."""
    by_source: dict[Node, dict[Node, set[Node]]] = {}  # a tensor -> values that follow from it alone -> operations
    for need in _needs(joint):
        chain = _chain(_before_relu(need))
        if chain is not None:
            source, operations = chain
            by_source.setdefault(source, {})[need] = operations
    for source, needs in by_source.items():
        others = [need for need in needs if _before_relu(need) is need]
        if len(needs) < 2 or not others or max(map(bytes_of, others)) < bytes_of(source):
            continue
        for need, operations in needs.items():
            if (input := _before_relu(need)) is not need:
                need.args = (input, *need.args[1:])
                operations = operations | {need}
            for operation in operations:
                operation.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)


def _needs(joint: GraphModule) -> list[Node]:
    """Large forward values that element-wise operations and sums of the backward read."""
    backward: set[Node] = set()
    needs: dict[Node, None] = {}
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if "tangents" in str(node.target):
                backward.add(node)
        elif not backward.isdisjoint(node.all_input_nodes):
            backward.add(node)
            if is_element_wise(node) or node.target in SUMS:
                size = max(map(size_of, node.all_input_nodes))
                needs |= {operand: None for operand in node.all_input_nodes if size_of(operand) == size > SMALL}
    return [need for need in needs if need not in backward]


def _before_relu(need: Node) -> Node:
    """The ReLU's input if the need is a comparison `relu(input) <= 0`, which equals `input <= 0`; else the need."""
    if need.target is not aten.le.Scalar or need.args[1] != 0:
        return need
    compared = need.args[0]
    while compared.target is aten.alias.default:
        compared = compared.args[0]
    return compared.args[0] if compared.target is aten.relu.default else need


def _chain(need: Node) -> tuple[Node, set[Node]] | None:
    """The one large tensor from which a value follows by element-wise operations, and these operations. None if there
    are several such tensors, or an operation is marked already (by a checkpoint)."""
    sources, operations, todo = set(), set(), [need]
    while todo:
        node = todo.pop()
        if node in operations or node in sources or size_of(node) * _FEW <= size_of(need):
            continue
        if "recompute" in node.meta or len(operations) > _MOST:
            return None
        if is_element_wise(node) or node.target in VIEWS:
            operations.add(node)
            todo += node.all_input_nodes
        else:
            sources.add(node)
    return (sources.pop(), operations) if len(sources) == 1 else None
