"""Leave out checks of indices that operators of PyTorch give for the same dimension, such as those of maxima in their
gradients."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from ..ir.fx_utils import arguments_of, base_of, given_again, is_view

aten, reformer = torch.ops.aten, torch.ops.reformer
_PLACES = (aten.argmax.default, aten.argmin.default)  # whose result is an index
_WITH_PLACES = (aten.max.dim, aten.min.dim, aten.topk.default, aten.sort.default, aten.sort.stable)  # the second one
_READERS = (aten.eq.Tensor, aten.index_select.default, reformer._embedding_grad.default)  # of any whole numbers


def trust_places(joint: GraphModule) -> None:
    """Let the readers of a check's result read the index itself where it is right by construction."""
    for node in joint.graph.find_nodes(op="call_function", target=reformer._row_numbers.default):
        arguments = arguments_of(node)
        index, rows = arguments["index"], arguments["rows"]
        size = _size_along(base_of(index))
        if size is not None and size <= rows and arguments["tables"] == 1 and _is_only_read(node):
            node.replace_all_uses_with(index)
            joint.graph.erase_node(node)
            _type_again(index)


def _size_along(node: Node) -> int | None:
    """Size of the dimension that an operator's indices are of; None if the node is no such index."""
    if node.target is operator.getitem and node.args[1] == 1:
        node = node.args[0]
        if node.target not in _WITH_PLACES:
            return None
    elif node.target not in _PLACES:
        return None
    arguments = arguments_of(node)
    source, dim = arguments["self"].meta["val"], arguments["dim"]
    if dim is None:
        return source.numel()
    return source.shape[dim] if source.dim() else 1


def _type_again(index: Node) -> None:
    """Give the views of an index its data type."""
    for user in filter(is_view, index.users):
        user.meta["val"] = given_again(user, {})
        _type_again(user)


def _is_only_read(node: Node) -> bool:
    return all(_is_only_read(user) if is_view(user) else user.target in _READERS for user in node.users)
