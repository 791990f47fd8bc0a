"""Orders of memory that nobody asked for: what is computed of repeated elements alone, as the gradient of
a mean over images, gets its dimensions' own order, and gives it to all that follows. Next to images in channels_last
that would cost transpositions, so it gets theirs."""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
# Besides element-wise operators, what gives the same elements whatever the order of memory. Others may have been chosen
# by it, as kernels of attention are.
_ANY_ORDER = {
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default),
    *(aten.var_mean.correction, aten.convolution.default, aten.convolution_backward.default, aten._to_copy.default),
    *(aten.clone.default, aten.copy.default, aten.view.default, aten.reshape.default, aten.permute.default),
    *(aten.expand.default, aten.squeeze.dims, aten.unsqueeze.default, aten.slice.Tensor, aten.select.int),
}


def settle(module: GraphModule) -> None:
    """Changes the fake results in the graph where that can be. Results of the graph stay as they are."""
    nodes = list(module.graph.nodes)
    chosen = {node for node in nodes if _is_open(node) and any(map(_is_of_images, _partners(node)))}
    if not chosen:
        return
    mode = next(iter(chosen)).meta["val"].fake_mode
    changed: dict[Node, object] = {}
    try:
        for node in nodes:
            if node.op == "call_function" and (node in chosen or any(each in changed for each in node.all_input_nodes)):
                if node.target is not operator.getitem and not _is_of_any_order(node):
                    return
                found = _again(node, changed, mode)
                changed[node] = found.contiguous(memory_format=torch.channels_last) if node in chosen else found
    except (RuntimeError, ValueError):  # an operator that looks at memory in another way can't look at this one
        return
    (output,) = module.graph.find_nodes(op="output")
    for node, value in changed.items():
        node.meta["val"], value = value, node.meta["val"]
        if node in output.all_input_nodes and value.stride() != node.meta["val"].stride():
            _restore(module, output, node, value)


def _tensors(node: Node) -> list[Tensor]:
    return [each.meta["val"] for each in node.all_input_nodes if isinstance(each.meta.get("val"), Tensor)]


def _is_element_wise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target is aten._to_copy.default


def _is_of_any_order(node: Node) -> bool:
    return _is_element_wise(node) or node.target in _ANY_ORDER


def _is_open(node: Node) -> bool:
    """Whether it is an element-wise operation on images of which each operand repeats its elements."""
    value, inputs = node.meta.get("val"), _tensors(node)
    if not _is_element_wise(node) or not isinstance(value, Tensor) or value.dim() != 4:
        return False
    if value.is_contiguous(memory_format=torch.channels_last) or not inputs:
        return False
    repeated = [0 in each.stride() or each.numel() < value.numel() for each in inputs]
    return all(repeated)


def _partners(node: Node) -> list[Tensor]:
    """What element-wise operations that need it take besides, or give to others that do."""
    found, todo, seen = [], [node], {node}
    while todo:
        for user in todo.pop().users:
            if user not in seen and _is_element_wise(user):
                seen.add(user)
                todo.append(user)
                found += _tensors(user)
    return [each for each in found if each.shape == node.meta["val"].shape]


def _is_of_images(tensor: Tensor) -> bool:
    """Whether only channels_last describes its order of memory."""
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _again(node: Node, changed: dict[Node, object], mode):
    """What the operator gives for the fake operands as they are now."""

    def value(each: Node):
        return changed.get(each, each.meta.get("val"))

    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
    with mode, torch.no_grad():
        return node.target(*args, **kwargs)


def _restore(module: GraphModule, output: Node, node: Node, before: Tensor) -> None:
    """Gives the graph's result in the order that it had."""
    with module.graph.inserting_before(output):
        options = {"dtype": before.dtype, "device": before.device}
        memory = module.graph.call_function(aten.empty_strided.default, (before.shape, before.stride()), options)
        copied = module.graph.call_function(aten.copy.default, (memory, node))
    memory.meta["val"] = copied.meta["val"] = before
    output.replace_input_with(node, copied)
    module.recompile()
