"""Copy the source of a copy, or nothing: of two copies in different orders of memory, as attention's result and a
model's reshape behind it have them, the second one reads what the first one reads. Where that lies in the second one's
order already, it is a view, and the forward saves one tensor instead of two."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import base_of, given_again, is_result, is_view

aten = torch.ops.aten


def copy_sources(module: GraphModule) -> None:
    """Let contiguous copies of copies read the first copy's operand. Results of the graph stay copies."""
    for node in module.graph.find_nodes(op="call_function", target=aten.clone.default):
        if node.kwargs.get("memory_format") is torch.contiguous_format and (views := _views_of_copy(node)):
            _read_source(node, views)


def _views_of_copy(node: Node) -> list[Node] | None:
    """The copy that a node reads, and the views of it in between, the copy first; None if the node reads no copy."""
    views = [node.args[0]]
    while is_view(views[0]):
        views.insert(0, views[0].args[0])
    return views if views[0].target is aten.clone.default else None


def _read_source(node: Node, views: list[Node]) -> None:
    """Let a copy read its source's views of these; leave it as it is if the source has no such views."""
    first, *views = views
    changed: dict[Node, Tensor] = {first: first.args[0].meta["val"]}
    try:
        for view in views:
            changed[view] = given_again(view, changed)
    except (RuntimeError, ValueError):
        return
    instead = {first: first.args[0]}
    with node.graph.inserting_before(node):
        for view in views:
            instead[view] = node.graph.node_copy(view, lambda operand: instead.get(operand, operand))
            instead[view].meta["val"] = changed[view]
    last = instead[node.args[0]]
    # A copy of an input stays: the input may be written to before the backward.
    is_needed = base_of(last).op == "placeholder" or is_result(node)
    if not is_needed and layout_of(last.meta["val"]).matches(layout_of(node.meta["val"])):
        node.replace_all_uses_with(last)
        node.graph.erase_node(node)
    else:
        node.args = (last,)
