"""Count the true elements of masks in floating point where only floating-point operators read the count, like the
number of tokens that a loss is divided by, or of maxima among which a gradient is shared. Programs read no integers;
fp32 holds all integers up to 2**24."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ...runtime.dtypes import FLOATS
from ..ir.fx_utils import VIEWS, given_again, is_element_wise

aten = torch.ops.aten
_MOST = 2**24  # elements of a sum


def count_in_floats(module: GraphModule) -> None:
    """Give sums of masks the data type that their readers convert them to."""
    for target in (aten.sum.dim_IntList, aten.sum.default):
        for node in module.graph.find_nodes(op="call_function", target=target):
            if not _counts(node):
                continue
            views, readers = _readers(node)
            dtypes = {reader.meta["val"].dtype for reader in readers if _computes_floats(reader)}
            if len(dtypes) == 1 and all(map(_computes_floats, readers)):
                node.kwargs = {**node.kwargs, "dtype": dtypes.pop()}
                for changed in (node, *views):
                    changed.meta["val"] = given_again(changed, {})


def _counts(node: Node) -> bool:
    mask, count = node.args[0].meta["val"], node.meta["val"]
    if mask.dtype != torch.bool or count.dtype != torch.int64 or not isinstance(mask.numel(), int):
        return False
    return mask.numel() <= _MOST * count.numel()


def _readers(node: Node) -> tuple[list[Node], list[Node]]:
    """Views of the node's result, in order, and all other nodes that read it or a view."""
    views, readers = [], []
    for source in (found := [node]):
        for user in source.users:
            (found if user.target in VIEWS else readers).append(user)
            views += [user] if user.target in VIEWS else []
    return views, readers


def _computes_floats(node: Node) -> bool:
    value = node.meta.get("val")
    return is_element_wise(node) and isinstance(value, Tensor) and value.dtype in FLOATS
