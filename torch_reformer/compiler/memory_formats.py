"""Orders of memory that nobody asked for, and that would cost transpositions. What is computed of repeated elements
alone, as the gradient of a mean over images, gets its dimensions' own order, and gives it to all that follows: next to
images in channels_last it gets theirs. What is computed of tensors in different orders gets the first one's: if one is
in the dimensions' own order, it gets that."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# Besides element-wise operators, what gives the same elements whatever the order of memory. Others may have been chosen
# by it, as kernels of attention are.
_ANY_ORDER = {
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default),
    *(aten.var_mean.correction, aten.convolution.default, aten.convolution_backward.default, aten._to_copy.default),
    *(aten.clone.default, aten.copy.default, aten.view.default, aten.reshape.default, aten.permute.default),
    *(aten.expand.default, aten.squeeze.dims, aten.unsqueeze.default, aten.slice.Tensor, aten.select.int),
}
# Between matrices, whose results have one order whatever their operands' is.
_OF_MATRICES = {
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten._unsafe_view.default, aten.t.default),
    *(aten.transpose.int, aten.detach.default, aten.squeeze.dim, aten.split_with_sizes.default),
}
_NEXT = 32  # element-wise operations that are looked at


def settle(module: GraphModule) -> None:
    """Changes the fake results in the graph where that can be. Results of the graph stay as they are."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    images = {node for node in nodes if _is_open(node) and any(map(_is_of_images, _partners(node, {})))}

    def for_images(node: Node, value: Tensor) -> Tensor:
        return value.contiguous(memory_format=torch.channels_last) if node in images else value

    def for_rows(node: Node, value: Tensor) -> Tensor:
        return value.contiguous() if _is_between_orders(node, value, changed) else value

    for choose, any_order in ((for_images, _ANY_ORDER), (for_rows, _ANY_ORDER | _OF_MATRICES)):
        changed: dict[Node, object] = {}
        try:
            for node in nodes:
                if (found := _changed(node, changed, choose, any_order)) is not None:
                    changed[node] = found
        except (RuntimeError, ValueError):  # an operator that looks at memory in another way can't look at this one
            continue
        _apply(module, changed)


class _HasAnOrder(RuntimeError):
    """An operator may have been chosen by its operands' order of memory."""


def _changed(node: Node, changed: dict[Node, object], choose: Callable[[Node, Tensor], Tensor], any_order: set):
    """What it gives in another order than before, or None."""
    before = node.meta.get("val")
    if any(each in changed for each in node.all_input_nodes):
        if not (node.target is operator.getitem or node.target in any_order or is_element_wise(node)):
            raise _HasAnOrder
        found = _again(node, changed)
    else:
        found = before
    if isinstance(found, Tensor):
        found = choose(node, found)
        return found if found.stride() != before.stride() else None
    return None if found is before else found


def _apply(module: GraphModule, changed: dict[Node, object]) -> None:
    (output,) = module.graph.find_nodes(op="output")
    for node, value in changed.items():
        node.meta["val"], value = value, node.meta["val"]
        if node in output.all_input_nodes and value.stride() != node.meta["val"].stride():
            _restore(module, output, node, value)


def _is_between_orders(node: Node, value: Tensor, changed: dict[Node, object]) -> bool:
    """Whether it is an element-wise operation that gives another order than its dimensions' own, which one of its
    operands has, or another operand of what needs it."""
    if not is_element_wise(node) or value.dim() == 4 or value.is_contiguous():
        return False
    given = [changed.get(each, each.meta.get("val")) for each in node.all_input_nodes]
    given = [each for each in given if isinstance(each, Tensor) and each.shape == value.shape]
    return any(each.is_contiguous() for each in (*given, *_partners(node, changed)))


def _tensors(node: Node) -> list[Tensor]:
    return [each.meta["val"] for each in node.all_input_nodes if isinstance(each.meta.get("val"), Tensor)]


def is_element_wise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target is aten._to_copy.default


def _is_open(node: Node) -> bool:
    """Whether it is an element-wise operation on images of which each operand repeats its elements."""
    value, inputs = node.meta.get("val"), _tensors(node)
    if not is_element_wise(node) or not isinstance(value, Tensor) or value.dim() != 4:
        return False
    if value.is_contiguous(memory_format=torch.channels_last) or not inputs:
        return False
    repeated = [0 in each.stride() or each.numel() < value.numel() for each in inputs]
    return all(repeated)


def _partners(node: Node, changed: dict[Node, object]) -> list[Tensor]:
    """What the next element-wise operations that need it take besides, or give to others that do."""
    found, todo, seen = [], [node], {node}
    while todo and len(seen) < _NEXT:
        for user in todo.pop().users:
            if user not in seen and is_element_wise(user):
                seen.add(user)
                todo.append(user)
                found += [changed.get(each, each.meta.get("val")) for each in user.all_input_nodes if each not in seen]
    return [each for each in found if isinstance(each, Tensor) and each.shape == node.meta["val"].shape]


def _is_of_images(tensor: Tensor) -> bool:
    """Whether only channels_last describes its order of memory."""
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _again(node: Node, changed: dict[Node, object]):
    """What the operator gives for the fake operands as they are now."""
    given = tree_leaves([changed.get(each) for each in node.all_input_nodes])
    mode = next(each.fake_mode for each in given if isinstance(each, Tensor))

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
