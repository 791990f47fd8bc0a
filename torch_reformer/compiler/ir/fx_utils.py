"""Properties of nodes of FX graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


def is_element_wise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target is aten._to_copy.default


def given_again(node: Node, changed: dict[Node, object]):
    """What the operator gives for the fake operands as they are now."""
    given = tree_leaves([changed.get(each, each.meta.get("val")) for each in node.all_input_nodes])
    mode = next(each.fake_mode for each in given if isinstance(each, Tensor))

    def value(each: Node):
        return changed.get(each, each.meta.get("val"))

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
    with mode, torch.no_grad():
        return node.target(*args, **kwargs)


def in_order(module: GraphModule, node: Node, strides: tuple[int, ...]) -> Node:
    """A copy of a result of the graph with these strides."""
    (output,) = module.graph.find_nodes(op="output")
    value = node.meta["val"]
    with module.graph.inserting_before(output):
        memory = module.graph.call_function(aten.new_empty_strided.default, (node, value.shape, strides))
        copied = module.graph.call_function(aten.copy.default, (memory, node))
    memory.meta["val"] = copied.meta["val"] = value.new_empty_strided(value.shape, strides)
    return copied


def base_of(node: Node) -> Node:
    while is_view(node):
        node = node.args[0]
    return node


def is_view(node: Node) -> bool:
    return getattr(node.target, "is_view", False)


def shares_memory(node: Node) -> bool:
    """True for a view, and for _unsafe_view, whose schema does not say that its result is one."""
    return is_view(node) or node.target is aten._unsafe_view.default


def real_number(value):
    return value if isinstance(value, (int, float, bool)) else None


# What has the same number in each element: that number, of the operator's arguments.
CONSTANTS: dict[Callable, Callable] = {
    aten.full.default: lambda sizes, number: real_number(number),
    aten.full_like.default: lambda like, number: real_number(number),
    aten.scalar_tensor.default: real_number,
    aten.zeros.default: lambda *_: 0.0,
    aten.zeros_like.default: lambda *_: 0.0,
    aten.ones.default: lambda *_: 1.0,
    aten.ones_like.default: lambda *_: 1.0,
    aten.new_zeros.default: lambda *_: 0.0,
}
constant_pad = torch.ops.aten.constant_pad_nd.default
SUMS = {aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default}
VIEWS = {aten.view.default, aten.unsqueeze.default, aten.squeeze.dims, aten.expand.default, aten.permute.default}
VIEWS |= {aten.alias.default}


def size_of(node: Node) -> int:
    """Elements of a tensor whose sizes are known; else 0."""
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) and isinstance(value.numel(), int) else 0


def bytes_of(node: Node) -> int:
    """Bytes of a tensor whose sizes are known; else 0."""
    size = size_of(node)
    return size * node.meta["val"].dtype.itemsize if size else 0


def is_static(module: GraphModule) -> bool:
    """True if no tensor of the graph has a stride that is a symbol."""
    values = [node.meta.get("val") for node in module.graph.nodes]
    strides = [each.stride() for each in values if isinstance(each, Tensor)]
    return all(isinstance(each, int) for stride in strides for each in stride)
