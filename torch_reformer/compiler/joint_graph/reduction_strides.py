"""Give results of reductions the order of their operands.

In PyTorch they are contiguous, whatever the operand's strides. Maxima over keys of attention whose heads lie inside, or
sums of parts of the channels of images in channels_last, would then be written in another order than the one in which
they are computed and read."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fx_utils import REDUCTIONS, in_order_of_operand
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, with_choice


def keep_order_in_reductions(module: GraphModule) -> None:
    """Change strides of the fake values of reductions' results, and of what follows. Results of the graph keep
    theirs."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    _change(module, nodes, [node for node in nodes if node.target in REDUCTIONS and _is_contiguous(node)])


def _change(module: GraphModule, nodes: list[Node], reductions: list[Node]) -> None:
    """Change the results of these reductions; of halves of them, if not all can be changed at once."""
    chosen = set(reductions)

    def choose(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return in_order_of_operand(node, value, changed) if node in chosen else value

    if changed := with_choice(nodes, choose, ANY_ORDER | OF_MATRICES):
        apply(module, changed)
    elif len(reductions) > 1:
        half = len(reductions) // 2
        _change(module, nodes, reductions[:half])
        _change(module, nodes, reductions[half:])


def _is_contiguous(node: Node) -> bool:
    """True if the result's elements may lie in several orders, and do not lie in the operand's."""
    value = node.meta["val"]
    return isinstance(value, Tensor) and in_order_of_operand(node, value, {}) is not value
