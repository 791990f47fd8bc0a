"""Concatenate in the order of memory in which the concatenation is copied.

The gradient of queries, keys and values that one product computes is a stack of theirs: a concatenation and a view of
it, which is copied for the product's gradients. Here it is one concatenation, which one kernel computes together with
the bias's gradient."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import given_again

aten = torch.ops.aten


def cat_in_order(module: GraphModule) -> None:
    """Replace contiguous copies of permuted stacks by concatenations of permuted parts."""
    for node in module.graph.find_nodes(op="call_function", target=aten.clone.default):
        if node.kwargs.get("memory_format") is torch.contiguous_format and (views := _views_of_stack(node)):
            _concatenate(node, *views)
    module.recompile()


def _views_of_stack(node: Node) -> tuple[Node, Node, Node] | None:
    """The concatenation, the view that separates its parts, and the permutation of it that the node copies; None if it
    copies something else, or if anything else reads them."""
    permuted = node.args[0]
    if permuted.target is not aten.permute.default or permuted.args[0].target is not aten.view.default:
        return None
    split = permuted.args[0]
    stack = split.args[0]
    if stack.target is not aten.cat.default or any(len(each.users) > 1 for each in (stack, split, permuted)):
        return None
    return stack, split, permuted


def _concatenate(node: Node, stack: Node, split: Node, permuted: Node) -> None:
    """Replace the copy if the view separates the parts, and if the result has the copy's strides."""
    parts, dim = stack.args[0], (stack.args[1] if len(stack.args) > 1 else 0) % stack.meta["val"].dim()
    values = [part.meta["val"] for part in parts]
    sizes = list(split.meta["val"].shape)
    if len({(value.shape, value.dtype) for value in values}) > 1 or values[0].dtype != node.meta["val"].dtype:
        return
    if len(sizes) <= dim + 1 or sizes[:dim] != list(values[0].shape[:dim]) or sizes[dim] != len(parts):
        return
    order = [d % len(sizes) for d in permuted.args[1]]
    graph, of_part = node.graph, [*sizes[:dim], 1, *sizes[dim + 1 :]]
    added: list[Node] = []

    def add(target, *args) -> Node:
        added.append(graph.call_function(target, args))
        added[-1].meta["val"] = given_again(added[-1], {})
        return added[-1]

    with graph.inserting_before(node):
        try:
            views = [
                add(aten.permute.default, add(aten.view.default, part, of_part), permuted.args[1]) for part in parts
            ]
            whole = add(aten.cat.default, views, order.index(dim))
        except (RuntimeError, ValueError):  # a part has no such view
            whole = None
    if whole is None or not layout_of(whole.meta["val"]).matches(layout_of(node.meta["val"])):
        for unused in reversed(added):
            graph.erase_node(unused)
        return
    whole.meta = {**node.meta, "val": node.meta["val"]}
    node.replace_all_uses_with(whole)
    graph.erase_node(node)
