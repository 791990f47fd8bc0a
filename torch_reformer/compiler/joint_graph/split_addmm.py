"""Split matrix products with a bias whose results are read by programs only, some of them in the backward. Programs add
the bias at no cost, while the vendors' products with a bias take longer than those without (performance-notes.md). The
forward saves the product without its bias for the backward."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ...runtime.dtypes import NARROW
from ..ir.fx_utils import SUMS, VIEWS, is_element_wise, size_of
from ..ir.iteration_space import LONGEST_ROW
from ..ir.kernel_limits import SMALL

aten = torch.ops.aten

_SHALLOW = 384  # in deeper products the result's bytes, and the bias, hardly count, unless it is the wider matrix


def split_addmm(joint: GraphModule) -> None:
    """Split each such product into `mm` and `add`, the latter of which AOTAutograd's partition recomputes."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.addmm.default):
        if not _supports(node) or node.kwargs or not _is_read_by_programs(node):
            continue
        bias, *matrices = node.args
        with joint.graph.inserting_before(node):
            product = joint.graph.call_function(aten.mm.default, tuple(matrices))
            sum = joint.graph.call_function(aten.add.Tensor, (product, bias))
        product.meta, sum.meta = dict(node.meta), dict(node.meta)
        sum.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.replace_all_uses_with(sum)
        joint.graph.erase_node(node)


def _supports(node: Node) -> bool:
    value, bias = node.meta["val"], node.args[0].meta["val"]
    if value.device.type != "cuda" or value.dtype not in NARROW or bias.dim() != 1:
        return False
    depth, columns = node.args[2].meta["val"].shape
    return size_of(node) > SMALL and (columns > depth or depth <= _SHALLOW) and columns <= LONGEST_ROW


def _is_read_by_programs(node: Node) -> bool:
    def reads(user: Node) -> bool:
        if user.target in VIEWS:
            return _is_read_by_programs(user)
        # A copy has other strides, and extern calls read it.
        return user.target in SUMS or (is_element_wise(user) and user.target is not aten.clone.default)

    return all(map(reads, node.users))
