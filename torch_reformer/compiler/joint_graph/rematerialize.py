"""What a backward's element-wise operations and sums need of the forward, where it follows from one tensor that they
read anyway: that is computed again there, and neither saved nor read besides. Batch norm and ReLU have such a mask: the
norm's gradient needs the norm's input, and the mask follows from that, too."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.fx_utils import SUMS, VIEWS, bytes_of, is_element_wise, size_of
from ..ir.kernel_limits import SMALL

aten = torch.ops.aten

_MOST = 16  # operations of a value that is computed again
_FEW = 16  # elements of a value for each of an operand that is small beside it


def rematerialize(joint: GraphModule) -> None:
    """Marks what is computed again, for AOTAutograd's partition."""
    of_source: dict[Node, dict[Node, set[Node]]] = {}  # a tensor -> what follows from it alone, and by which operations
    for need in _needs(joint):
        chain = _chain(_before_relu(need))
        if chain is not None:
            source, operations = chain
            of_source.setdefault(source, {})[need] = operations
    for source, needs in of_source.items():
        others = [need for need in needs if _before_relu(need) is need]
        if len(needs) < 2 or not others or max(map(bytes_of, others)) < bytes_of(source):
            continue
        for need, operations in needs.items():
            if (same := _before_relu(need)) is not need:
                need.args = (same, *need.args[1:])
                operations = operations | {need}
            for each in operations:
                each.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)


def _needs(joint: GraphModule) -> list[Node]:
    """Large values of the forward that element-wise operations and sums of the backward read."""
    backward: set[Node] = set()
    found: dict[Node, None] = {}
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if "tangents" in str(node.target):
                backward.add(node)
        elif not backward.isdisjoint(node.all_input_nodes):
            backward.add(node)
            if is_element_wise(node) or node.target in SUMS:
                size = max(map(size_of, node.all_input_nodes))
                found |= {each: None for each in node.all_input_nodes if size_of(each) == size > SMALL}
    return [each for each in found if each not in backward]


def _before_relu(need: Node) -> Node:
    """What may be compared in the place of a ReLU's result with zero; the need itself if it is nothing like that."""
    if need.target is not aten.le.Scalar or need.args[1] != 0:
        return need
    of = need.args[0]
    while of.target is aten.alias.default:
        of = of.args[0]
    return of.args[0] if of.target is aten.relu.default else need


def _chain(need: Node) -> tuple[Node, set[Node]] | None:
    """The one large tensor from which a value follows by element-wise operations, and these. None if there are several,
    or something else has to be said of them (checkpoints)."""
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
