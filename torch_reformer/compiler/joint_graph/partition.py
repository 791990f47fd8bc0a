"""Marks for PyTorch's partition of a joint graph: what the forward saves for the backward, and what the backward
recomputes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.fx_utils import REDUCTIONS, base_of, is_element_wise, is_view, size_of
from ..ir.gather import OPERATORS

aten = torch.ops.aten
_GATHERS = {*OPERATORS, aten.index.Tensor}
_COPIES = (aten.clone.default, aten._to_copy.default)
_EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
_WITH_PLACES = (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default)
_MUCH = 8  # elements of a result for each element of its operands


def save_compared_extremes(joint: GraphModule) -> None:
    """Save tensors that the backward compares with their own maximum or minimum. Another kernel, which may round
    products added elsewhere, could recompute other values, none of which equals the extreme."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        one, other = (base_of(operand) for operand in node.args)
        for extreme, source in ((one, other), (other, one)):
            if extreme.target not in _EXTREMES or base_of(extreme.args[0]) is not source:
                continue
            if source.op == "call_function":
                # setdefault: a checkpoint recomputes both.
                source.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def save_places(joint: GraphModule) -> None:
    """Save maxima and minima with their places: computing them again takes the elements twice more."""
    for target in _WITH_PLACES:
        for node in joint.graph.find_nodes(op="call_function", target=target):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def recompute_broadcasts(joint: GraphModule) -> None:
    """Recompute element-wise results that are far larger than their operands, such as a comparison of a row with a
    column."""
    for node in joint.graph.nodes:
        if node.op == "call_function" and "recompute" not in node.meta and size_of(node):
            if is_element_wise(node) and _MUCH * sum(map(size_of, node.all_input_nodes)) < size_of(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def recompute_gathers(joint: GraphModule) -> None:
    """Repeat a gather of rows in the backward if only programs read them as rows and the table is an input or is
    smaller than the rows: programs read the table itself as they would read saved rows (fusion/fuse_gather.py). Save
    rows that are read in another order by something far larger, such as a bias of attention: they would be gathered and
    transposed once more."""
    for node in joint.graph.nodes:
        if node.target not in _GATHERS or "recompute" in node.meta or not size_of(node):
            continue
        if node.target in OPERATORS and _is_read_by_programs(node):
            table = node.args[0]
            if _is_input(table) or 0 < size_of(table) < size_of(node):
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
            continue
        stored = _last_copy(node)
        others = [max(map(size_of, (reader, *reader.all_input_nodes))) for _, reader in _readers(stored)]
        if _MUCH * size_of(node) <= min(others, default=0):
            stored.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _is_input(node: Node) -> bool:
    return base_of(node).op == "placeholder"


def _readers(node: Node) -> Iterator[tuple[Node, Node]]:
    """The nodes that read a node or views of it, each with what it reads."""
    for user in node.users:
        if is_view(user):
            yield from _readers(user)
        else:
            yield node, user


def _is_read_by_programs(gather: Node) -> bool:
    """True if only programs read the gather, and elements of a row are adjacent in the views of it that they read."""
    columns = gather.meta["val"].shape[-1] if gather.meta["val"].dim() else 0
    return columns > 0 and all(
        (is_element_wise(reader) or reader.target in REDUCTIONS)
        and operand.meta["val"].stride()[-1:] == (1,)
        and operand.meta["val"].shape[-1] % columns == 0
        for operand, reader in _readers(gather)
    )


def _last_copy(node: Node) -> Node:
    """The last of a chain of copies and casts of a node's elements, through views."""
    while len(readers := [*_readers(node)]) == 1 and readers[0][1].target in _COPIES:
        node = readers[0][1]
    return node
