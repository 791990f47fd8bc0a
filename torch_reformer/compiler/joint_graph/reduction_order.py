"""Give results of reductions the order of their operands, and what is computed of broadcast tensors, as reductions'
gradients are, the order of what else is computed of them.

In PyTorch both are contiguous, whatever the operands' strides. Maxima over keys of attention whose heads lie inside, or
sums of parts of the channels of images in channels_last and their gradients, would then be written in another order
than the one in which they are computed and read."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import REDUCTIONS, in_order_of_operand, is_element_wise
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, changes_by, partners

aten = torch.ops.aten


def keep_order_in_reductions(module: GraphModule) -> None:
    """Change strides of the fake values of reductions' results and of what is computed of broadcast tensors, and of
    what follows. Results of the graph keep theirs."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    if any(node.target in REDUCTIONS and _choose(node, node.meta["val"], {}) is not node.meta["val"] for node in nodes):
        _change(module, [node for node in nodes if node.target in REDUCTIONS or _is_broadcast(node)])


def _change(module: GraphModule, free: list[Node]) -> None:
    """Change the results of these nodes; of halves of them, if not all can be changed at once."""
    chosen = set(free)

    def choose(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        if node in chosen:
            return _choose(node, value, changed)
        # A copy that was made for a view, which other strides may allow without it. It still is one where the graph
        # runs without a plan.
        operand = changed.get(node.args[0]) if node.target is aten.clone.default else None
        is_dense = isinstance(operand, Tensor) and layout_of(operand).is_dense
        return _like(value, operand) if is_dense else value

    try:
        changed = changes_by(free, choose, ANY_ORDER | OF_MATRICES)
    except (RuntimeError, ValueError):
        half = len(free) // 2
        for part in (free[:half], free[half:]) if half else ():
            _change(module, part)
    else:
        apply(module, changed)


def _choose(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
    """The result in the order that it should have."""
    if not isinstance(value, Tensor):
        return value
    if node.target in REDUCTIONS:
        return in_order_of_operand(node, value, changed)
    read_with = (read for input in node.all_input_nodes for user in input.users for read in _read_by(user))
    others = (changed.get(other, other.meta.get("val")) for other in read_with)
    for other in itertools.chain(others, partners(node, changed)):
        if isinstance(other, Tensor) and other.shape == value.shape and not other.is_contiguous():
            if layout_of(other).is_dense:
                return _like(value, other)
    return value


def _read_by(node: Node) -> list[Node]:
    """Operands of an element-wise operation; none of another node."""
    return node.all_input_nodes if is_element_wise(node) else []


def _is_broadcast(node: Node) -> bool:
    """True for an element-wise operation whose operands all repeat their elements."""
    value = node.meta.get("val")
    if not is_element_wise(node) or not isinstance(value, Tensor):
        return False
    operands = [input.meta["val"] for input in node.all_input_nodes if isinstance(input.meta.get("val"), Tensor)]
    return bool(operands) and all(0 in operand.stride() or operand.numel() < value.numel() for operand in operands)


def _like(value: Tensor, other: Tensor) -> Tensor:
    return value.new_empty_strided(value.shape, other.stride()) if value.stride() != other.stride() else value
