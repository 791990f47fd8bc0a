"""Give results of reductions the order of their operands.

In PyTorch they are contiguous, whatever the operand's strides. Maxima over keys of attention whose heads lie inside, or
sums of parts of the channels of images in channels_last, would then be written in another order than the one in which
they are computed and read."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import REDUCTIONS
from ..ir.layout import Layout
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
        return _in_order(node, value, changed) if node in chosen else value

    if changed := with_choice(nodes, choose, ANY_ORDER | OF_MATRICES):
        apply(module, changed)
    elif len(reductions) > 1:
        half = len(reductions) // 2
        _change(module, nodes, reductions[:half])
        _change(module, nodes, reductions[half:])


def _is_contiguous(node: Node) -> bool:
    """True if the result's elements may lie in several orders, and do not lie in the operand's."""
    value = node.meta["val"]
    return isinstance(value, Tensor) and _in_order(node, value, {}) is not value


def _in_order(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
    """The result with its dimensions in the operand's order of memory; the value itself if they are."""
    operand = layout_of(changed.get(node.args[0], node.args[0].meta["val"]))
    strides = operand.strides
    if value.dim() < len(strides):
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        dims = [dims] if isinstance(dims, int) else dims or range(len(strides))
        over = {d % len(strides) for d in dims}
        strides = tuple(stride for d, stride in enumerate(strides) if d not in over)
    sizes = tuple(value.shape)
    if any(size > 1 and not stride for size, stride in zip(sizes, strides, strict=True)):
        return value  # repeated elements have no order
    packed = Layout(sizes, strides).packed
    return value if packed.matches(layout_of(value)) else value.new_empty_strided(sizes, packed.strides)
