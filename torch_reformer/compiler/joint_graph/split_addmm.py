"""Biases of matrix products that only element-wise operations read, and that the backward needs, too: programs add
them, which costs nothing there, while the vendor's products with a bias take longer than those without
(performance-notes.md). What is saved for the backward is the product itself."""

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
    """Takes such products apart, for AOTAutograd's partition."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.addmm.default):
        if not _is_known(node) or node.kwargs or not _is_read_by_programs(node):
            continue
        bias, *matrices = node.args
        with joint.graph.inserting_before(node):
            product = joint.graph.call_function(aten.mm.default, tuple(matrices))
            sum = joint.graph.call_function(aten.add.Tensor, (product, bias))
        product.meta, sum.meta = dict(node.meta), dict(node.meta)
        sum.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        node.replace_all_uses_with(sum)
        joint.graph.erase_node(node)


def _is_known(node: Node) -> bool:
    value, bias = node.meta["val"], node.args[0].meta["val"]
    if value.device.type != "cuda" or value.dtype not in NARROW or bias.dim() != 1:
        return False
    depth, columns = node.args[2].meta["val"].shape
    return size_of(node) > SMALL and (columns > depth or depth <= _SHALLOW) and columns <= LONGEST_ROW


def _is_read_by_programs(node: Node) -> bool:
    def reads(user: Node) -> bool:
        if user.target in VIEWS:
            return _is_read_by_programs(user)
        # A copy has another order, and is read by calls.
        return user.target in SUMS or (is_element_wise(user) and user.target is not aten.clone.default)

    return all(map(reads, node.users))
