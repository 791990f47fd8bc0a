"""Concatenate gradients of slices that together are the whole: PyTorch adds them up, each with zeros elsewhere.

The kernels that compute the parts write them then (fusion/fuse_concat.py), or one program computes the whole
(lowering/cat.py), as for rotary embeddings. 0 is added to each part: -0.0 + 0 is 0."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import GraphModule, Node

from ...runtime.dtypes import FLOATS
from ..ir.fx_utils import given_again

aten = torch.ops.aten


class _Slice(NamedTuple):
    """Part of a tensor: from `start` to `end` of one dimension, with zeros before and behind."""

    node: Node
    dim: int
    start: int
    end: int


def cat_slices(module: GraphModule) -> None:
    """Replace sums of two slices with zeros elsewhere by concatenations, also where something is added in between."""
    for node in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if not _is_sum(node):
            continue
        for operand, other in (node.args, node.args[::-1]):
            if (parts := _whole(operand, other)) is not None:
                _replace(node, parts, None)
                break
            if not _is_sum(other) or len(other.users) > 1 or not _is_like(other, node):
                continue
            found = [(_whole(operand, each), rest) for each, rest in (other.args, other.args[::-1])]
            if (pair := next((pair for pair in found if pair[0] is not None), None)) is not None:
                _replace(node, *pair)
                break


def _is_sum(node: Node) -> bool:
    """True for a + b of two tensors that have the result's shape and type."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return False
    return all(isinstance(operand, Node) and _is_like(operand, node) for operand in node.args)


def _is_like(one: Node, other: Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.dtype in FLOATS and a.shape == b.shape


def _whole(one: Node, other: Node) -> list[_Slice] | None:
    """Both nodes as slices, in order, if they are the whole together."""
    slices = _slice_of(one), _slice_of(other)
    if None in slices:
        return None
    first, second = sorted(slices, key=lambda part: part.start)
    size = one.meta["val"].shape[first.dim]
    is_whole = first.start == 0 and first.end == second.start and second.end == size
    return [first, second] if is_whole and first.dim == second.dim else None


def _slice_of(node: Node) -> _Slice | None:
    """The slice between zeros that a node gives to one other node."""
    if len(node.users) != 1 or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    shape = node.meta["val"].shape
    if node.target is aten.slice_scatter.default:
        base, source, dim, start, end, step = (*node.args, *(0, None, None, 1)[len(node.args) - 2 :])
        dim %= len(shape)
        if type(shape[dim]) is not int:  # a symbol, of which no number may be made
            return None
        start, end, _ = slice(start, end).indices(shape[dim])
        if node.kwargs or step != 1 or end <= start or not _is_zero(base):
            return None
        if source.meta["val"].dtype != node.meta["val"].dtype:
            return None
        return _Slice(source, dim, start, end)
    if node.target is aten.constant_pad_nd.default and (len(node.args) < 3 or node.args[2] == 0):
        source, padding = node.args[:2]
        pads = [(len(shape) - 1 - i // 2, *padding[i : i + 2]) for i in range(0, len(padding), 2)]
        pads = [pad for pad in pads if any(pad[1:])]
        if node.kwargs or len(pads) != 1 or any(type(n) is not int or n < 0 for n in pads[0]):
            return None
        ((dim, before, after),) = pads
        return _Slice(source, dim, before, shape[dim] - after) if before + after < shape[dim] else None
    return None


def _is_zero(node: Node) -> bool:
    return node.target is aten.full.default and node.args[1] == 0


def _replace(node: Node, parts: list[_Slice], added: Node | None) -> None:
    """Replace the sum by the concatenation of the parts, to which another tensor may be added."""
    graph = node.graph

    def call(target, *args) -> Node:
        new = graph.call_function(target, args)
        new.meta["val"] = given_again(new, {})
        return new

    with graph.inserting_before(node):
        positive = [call(aten.add.Tensor, part.node, 0.0) for part in parts]
        whole = call(aten.cat.default, positive, parts[0].dim)
        if added is not None:
            whole = call(aten.add.Tensor, added, whole)
    if whole.meta["val"].stride() == node.meta["val"].stride():
        node.replace_all_uses_with(whole)
    for unused in (node, whole):
        _erase(unused)


def _erase(node: Node) -> None:
    """Erase a node that nothing reads, and what only it needs."""
    if node.users or node.op != "call_function":
        return
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for operand in operands:
        _erase(operand)
