"""Compute the transpose of a product where only that is read: (a b)' = b' a'.

The gradient of keys is a product with rows and columns swapped. PyTorch's element-wise operations keep its order of
memory, so a norm of keys would be differentiated in another order than that of its other operands. What is left, such
as products that are concatenated, passes/transpose_products.py transposes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fx_utils import given_again, is_element_wise
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, changes_by

aten = torch.ops.aten


def swap_operands(module: GraphModule) -> None:
    """Swap the operands of batched products whose results, or what element-wise operations of one tensor make of them,
    are only read with rows and columns swapped. Results of the graph keep their strides."""
    for product in module.graph.find_nodes(op="call_function", target=aten.bmm.default):
        if not product.users or not all(_reads_transpose(user, product, 1) for user in product.users):
            continue

        def choose(node: Node, value: Tensor, changed: dict[Node, object], product: Node = product) -> Tensor:
            return _transposed(value) if node is product else value

        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        try:
            changed = changes_by(nodes, choose, ANY_ORDER | OF_MATRICES)
        except (RuntimeError, ValueError):
            continue
        apply(module, changed)
        _swap(product)


def _reads_transpose(node: Node, read: Node, rows: int) -> bool:
    """True if only operations read the product, through this user of it, for which rows are the last dimension.

    Args:
        read: the operand that has the product's elements.
        rows: the dimension of its rows: the last one or the one before.
    """
    last = read.meta["val"].dim() - 1
    if node.target is aten.permute.default:
        dims = [d % (last + 1) for d in node.args[1]]
        after = [dims.index(d) for d in (rows, 2 * last - 1 - rows)]
        if sorted(after) != [last - 1, last]:
            return after[0] == last
        rows = after[0]
    elif node.target is aten.view.default and node.meta["val"].shape[-2:] == read.meta["val"].shape[-2:]:
        rows += node.meta["val"].dim() - 1 - last
    elif not is_element_wise(node) or len(node.all_input_nodes) > 1:
        return rows == last and node.op != "output"
    return bool(node.users) and all(_reads_transpose(user, node, rows) for user in node.users)


def _transposed(value: Tensor) -> Tensor:
    """A tensor of these sizes whose columns are rows of memory."""
    batch, rows, columns = value.shape
    return value.new_empty_strided(value.shape, (rows * columns, 1, rows))


def _swap(product: Node) -> None:
    """Replace the product by the transpose of the product of its transposed operands."""
    graph, value = product.graph, product.meta["val"]
    with graph.inserting_before(product):
        swapped = [graph.call_function(aten.permute.default, (operand, [0, 2, 1])) for operand in product.args[::-1]]
        for node in swapped:
            node.meta["val"] = given_again(node, {})
        whole = graph.call_function(aten.bmm.default, tuple(swapped))
        transposed = graph.call_function(aten.permute.default, (whole, [0, 2, 1]))
    whole.meta, transposed.meta = dict(product.meta), dict(product.meta)
    (batch, rows, columns), strides = value.shape, value.stride()
    whole.meta["val"] = value.new_empty_strided((batch, columns, rows), tuple(strides[d] for d in (0, 2, 1)))
    product.replace_all_uses_with(transposed)
    graph.erase_node(product)
