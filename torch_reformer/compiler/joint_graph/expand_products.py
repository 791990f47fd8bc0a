"""Products with a few columns and a short depth, as sums of element-wise products, where the columns lie apart.

Such a product (the heads of attention scores that are mixed, as in CaiT) is bound by memory, and matrix products read
and write its columns next to each other: the heads, which lie apart in the scores, are moved inside before it and
outside behind it. Its sums have so few terms that programs compute them where softmax and the like are computed, with
the heads where they are. The weight's gradient has a sum over all rows for each of its elements: programs sum each row
of the scores, and add these sums up.

Terms are multiplied and summed in fp32, as products do it, so NaN and infinities spread as there. Results are rounded
once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.fx_utils import base_of, given_again
from ..ir.iteration_space import LONGEST_ROW
from ..ir.kernel_limits import LITTLE
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, changes_by

aten = torch.ops.aten

DEVICES = {"cuda"}  # on CPUs, programs read slices of each operand more slowly than a product does
MOST_TERMS = 5  # of each sum: a program reads as many slices, with as many rows of the weight (kernel_limits.py)
LEAST_WIDTH = 16  # elements of a line of the scores
_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.alias.default}


class _Rows(NamedTuple):
    """A matrix whose rows are those of a tensor's last dimension, before it was copied.

    Args:
        tensor: its last dimension has the matrix's columns, and the others together its rows.
        order: the tensor's dimensions in the order of memory; the last of them is not the last dimension.
    """

    tensor: Node
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.meta["val"].shape)

    @property
    def axis(self) -> int:
        """Where the columns are in the order of memory."""
        return self.order.index(len(self.order) - 1)


def expand_products(module: GraphModule) -> None:
    """Replace such products of matrices (``mm``, ``addmm``) by element-wise operations and sums."""
    for node in list(module.graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default) and not node.kwargs and _supports(node):
            _expand_product(module, node) or _expand_weight_gradient(node)


def _supports(product: Node) -> bool:
    values = [operand.meta["val"] for operand in product.args]
    return all(value.dtype == product.meta["val"].dtype and value.device.type in DEVICES for value in values) and (
        product.meta["val"].dtype in _DTYPES
    )


def _rows(matrix: Node) -> _Rows | None:
    """The tensor whose copy a matrix is a view of; None unless its columns are few and lie apart. A copy of an input
    stays, which may be written to before the backward."""
    value = matrix.meta["val"]
    node, columns = matrix, value.shape[1]
    while node.target in _RESHAPES and node.args[0].meta["val"].shape[-1:] == (columns,):
        node = node.args[0]
    if node.target is aten.clone.default:
        node = node.args[0]
        if base_of(node).op == "placeholder":
            return None
    sizes, strides = node.meta["val"].shape, node.meta["val"].stride()
    order = tuple(sorted(range(len(sizes)), key=lambda d: (sizes[d] > 1, -strides[d])))
    fits = 2 <= columns <= MOST_TERMS and value.numel() > LITTLE and LEAST_WIDTH <= sizes[order[-1]] <= LONGEST_ROW
    is_apart = strides[order[-1]] == 1 and order[-1] != len(sizes) - 1 and strides[-1] > 1
    return _Rows(node, order) if fits and is_apart and all(strides[d] for d in order if sizes[d] > 1) else None


class _Product(NamedTuple):
    """A product of a tensor's rows with a matrix of weights.

    Args:
        weight: [terms, columns], or [columns, terms] if it is transposed.
        bias: at most one vector with an element a column.
        results: views of the product that have its columns as their last dimension, and are all that reads it.
    """

    rows: _Rows
    weight: Node
    is_transposed: bool
    bias: list[Node]
    results: list[Node]

    @property
    def columns(self) -> int:
        return self.weight.meta["val"].shape[0 if self.is_transposed else 1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the results."""
        return (*self.rows.shape[:-1], self.columns)


def _product(node: Node) -> _Product | None:
    """The product that a node computes, or whose transpose it computes; None if it has no rows as _rows finds them."""
    *bias, one, other = node.args
    if not bias and _is_transpose(other) and node.users and all(map(_is_transpose, node.users)):
        results = [result for user in node.users for result in user.users]
        rows, weight, is_transposed = _rows(other.args[0]), one, True
    else:
        results, rows, weight, is_transposed = list(node.users), _rows(one), other, False
    if rows is None:
        return None
    product = _Product(rows, weight, is_transposed, bias, results)
    if not 2 <= product.columns <= MOST_TERMS or not results:
        return None
    if any(each.target not in _RESHAPES or each.meta["val"].shape != product.shape for each in results):
        return None
    is_vector = all(each.meta["val"].shape in ((product.columns,), (1, product.columns)) for each in bias)
    return product if is_vector else None


def _is_transpose(node: Node) -> bool:
    return node.target is aten.t.default or (node.target is aten.permute.default and list(node.args[1]) == [1, 0])


def _expand_product(module: GraphModule, node: Node) -> bool:
    """Replace a product of rows with a matrix, if what reads it may have its columns apart."""
    if (product := _product(node)) is None:
        return False
    rows, shape = product.rows, product.shape
    dtype = node.meta["val"].dtype
    in_memory = node.meta["val"].new_empty([shape[d] for d in rows.order]).permute(_inverse(rows.order))

    def choose(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return in_memory if node in product.results else value

    try:
        changed = changes_by(product.results, choose, ANY_ORDER | OF_MATRICES)
    except (RuntimeError, ValueError):
        return False
    apply(module, changed)
    call = _Calls(node)
    tensor, axis = call(aten.permute.default, rows.tensor, rows.order), rows.axis
    along = [1] * len(shape)
    along[axis] = product.columns
    weight = call.wide(product.weight)
    total = None
    for i in range(rows.shape[-1]):
        part = call(aten.slice.Tensor, tensor, axis, i, i + 1)
        factors = call(aten.select.int, weight, int(product.is_transposed), i)
        term = call(aten.mul.Tensor, part, call(aten.view.default, factors, along))
        total = call(aten.add.Tensor, total, term) if total else term
    for each in product.bias:
        total = call(aten.add.Tensor, total, call(aten.view.default, call.wide(each), along))
    result = call(aten._to_copy.default, total, dtype=dtype)
    result.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    result = call(aten.permute.default, result, _inverse(rows.order))
    for view in product.results:
        view.replace_all_uses_with(result)
        _erase(view)
    return True


def _erase(node: Node) -> None:
    """Erase a node that nobody reads, and its operands that nobody else reads."""
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for operand in operands:
        if not operand.users and operand.op == "call_function":
            _erase(operand)


def _expand_weight_gradient(product: Node) -> bool:
    """Replace a product that sums over the rows of two tensors with the same order of memory."""
    *bias, transposed, other = product.args
    if bias or not _is_transpose(transposed):
        return False
    first, second = _rows(transposed.args[0]), _rows(other)
    if first is None or second is None or first.order != second.order or first.shape[:-1] != second.shape[:-1]:
        return False
    call, axis = _Calls(product), first.axis
    gradient, input = (call(aten.permute.default, each.tensor, each.order) for each in (first, second))
    input = call.wide(input)
    parts = []
    for i in range(first.shape[-1]):
        term = call(aten.mul.Tensor, call(aten.slice.Tensor, gradient, axis, i, i + 1), input)
        parts.append(call(aten.unsqueeze.default, call(aten.sum.dim_IntList, term, [-1]), 0))
    others = [d for d in range(len(first.order)) if d not in (axis, len(first.order) - 1)]
    result = call.summed(call(aten.cat.default, parts), [d + 1 for d in others])
    result = call(aten._to_copy.default, result, dtype=product.meta["val"].dtype)
    product.replace_all_uses_with(result)
    _erase(product)
    for rows in (first, second):
        _sum_lines_first(rows)
    return True


def _sum_lines_first(rows: _Rows) -> None:
    """Sum the lines of a tensor before their sums, where the bias's gradient is the sum of all but the columns: a
    program that reads the lines sums them, too."""
    last = len(rows.order) - 1
    for node in [user for user in rows.tensor.users if user.target is aten.sum.dim_IntList]:
        if node.kwargs or sorted(d % (last + 1) for d in node.args[1]) != list(range(last)):
            continue
        call, value = _Calls(node), node.meta["val"]
        lines = call(aten.permute.default, call.wide(rows.tensor), rows.order)
        sums = call(aten.sum.dim_IntList, lines, [-1])
        sums = call.summed(sums, [d for d in range(last) if d != rows.axis])
        sums = call(aten.view.default, call(aten._to_copy.default, sums, dtype=value.dtype), list(value.shape))
        node.replace_all_uses_with(sums)
        _erase(node)


def _inverse(order: tuple[int, ...]) -> list[int]:
    return [order.index(d) for d in range(len(order))]


class _Calls:
    """Adds nodes to a graph before one of its nodes."""

    def __init__(self, before: Node):
        self.before = before

    def __call__(self, target: Callable, *args, **kwargs) -> Node:
        with self.before.graph.inserting_before(self.before):
            node = self.before.graph.call_function(target, args, kwargs)
        node.meta["val"] = given_again(node, {})
        return node

    def summed(self, node: Node, dims: list[int]) -> Node:
        """The node's sums over these dimensions; the node if there are none, of which PyTorch would sum all."""
        return self(aten.sum.dim_IntList, node, dims) if dims else node

    def wide(self, node: Node) -> Node:
        """The node in fp32."""
        if node.meta["val"].dtype == torch.float32:
            return node
        return self(aten._to_copy.default, node, dtype=torch.float32)
