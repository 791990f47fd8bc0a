"""Products of few columns and terms as sums of element-wise products, where the columns lie apart in memory.

The heads of attention scores that are mixed (talking heads, as in CaiT) are such products. They are bound by memory,
and products read and write heads next to each other, so these would be moved inside before and outside behind. With
so few terms, programs compute the sums together with the softmax and whatever else is there, with the heads where they
are. Each element of the weight's gradient is a sum over all rows: programs sum lines of the scores, and then these
sums.

Terms are multiplied and summed in fp32, as in products, so NaN and infinities spread as there. A result is rounded as
a product's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ...runtime.dtypes import SUMMED_IN_FP32
from ..ir.custom_ops import USER_CAST
from ..ir.fx_utils import base_of, given_again
from ..ir.iteration_space import LONGEST_ROW
from ..ir.kernel_limits import LITTLE
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, changes_by

aten = torch.ops.aten

DEVICES = {"cuda"}  # on CPUs a product takes less time than a program that reads a slice for each term
MOST_TERMS = 8  # and columns: for each of them a program reads a slice and a row of the weight (ir/kernel_limits.py)
LEAST_OF_LINE = 16  # adjacent elements
_PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default}
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.alias.default}


class _Rows(NamedTuple):
    """A tensor whose last dimension has the elements of a matrix's rows. Dimensions of one element do not count.

    Args:
        order: the dimensions in the order of memory. Elements of the last one, a line, are adjacent; that is not the
            tensor's last dimension.
    """

    tensor: Node
    order: tuple[int, ...]

    @property
    def sizes(self) -> list[int]:
        """Sizes of the dimensions that count; the last one is the length of the matrix's rows."""
        return _without_ones(self.tensor.meta["val"].shape)

    @property
    def axis(self) -> int:
        """The place of the tensor's last dimension in the order of memory."""
        return self.order.index(len(self.order) - 1)


class _Product(NamedTuple):
    """A product of rows with a matrix of weights, [terms, columns].

    Args:
        is_transposed: the weight is [columns, terms].
        bias: at most one vector with an element a column.
        results: all that read the product: views whose last dimension has its columns.
    """

    rows: _Rows
    weight: Node
    is_transposed: bool
    bias: list[Node]
    results: list[Node]

    @property
    def columns(self) -> int:
        return self.weight.meta["val"].shape[-2 if self.is_transposed else -1]


def expand_products(module: GraphModule) -> None:
    """Replace such products, and such gradients of weights, by element-wise operations and sums."""
    for node in list(module.graph.nodes):
        if node.target in _PRODUCTS and not node.kwargs and _supports(node):
            _expand_product(module, node) or _expand_weight_gradient(node)


def _supports(product: Node) -> bool:
    values = [node.meta["val"] for node in (product, *product.args)]
    are_static = all(type(size) is int for value in values for size in value.shape)
    return are_static and values[0].device.type in DEVICES and values[0].dtype in SUMMED_IN_FP32


def _rows(matrix: Node) -> _Rows | None:
    """The tensor that a matrix is a view or a copy of; None unless its columns are few and lie apart. A copy of an
    input stays, which may be written to before the backward."""
    value, node = matrix.meta["val"], matrix
    columns = value.shape[-1]
    while node.target in _RESHAPES and _without_ones(node.args[0].meta["val"].shape)[-1:] == [columns]:
        node = node.args[0]
    if node.target is aten.clone.default:
        node = node.args[0]
        if base_of(node).op == "placeholder":
            return None
    sizes, strides = node.meta["val"].shape, node.meta["val"].stride()
    if not all(type(number) is int for number in (*sizes, *strides)):
        return None
    if not 2 <= columns <= MOST_TERMS or value.numel() <= LITTLE:
        return None
    runs = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    order = tuple(sorted(range(len(runs)), key=lambda d: -runs[d][1]))
    size, stride = runs[order[-1]]
    is_line = stride == 1 and LEAST_OF_LINE <= size <= LONGEST_ROW
    return _Rows(node, order) if is_line and order[-1] != len(runs) - 1 else None


def _product(node: Node) -> _Product | None:
    """The product that a node computes, or the transpose of."""
    *bias, one, other = node.args
    if not bias and _is_transpose(other) and node.users and all(map(_is_transpose, node.users)):
        results = [result for user in node.users for result in user.users]
        rows, weight, is_transposed = _rows(other.args[0]), one, True
    else:
        results, rows, weight, is_transposed = list(node.users), _rows(one), other, False
    matrices = weight.meta["val"]
    if rows is None or (matrices.dim() == 3 and matrices.shape[0] > 1 and matrices.stride()[0] != 0):
        return None
    product = _Product(rows, weight, is_transposed, bias, results)
    sizes = [*rows.sizes[:-1], product.columns]
    if not 2 <= product.columns <= MOST_TERMS or not results:
        return None
    if any(each.target not in _RESHAPES or _without_ones(each.meta["val"].shape) != sizes for each in results):
        return None
    are_vectors = all(each.meta["val"].shape in ((product.columns,), (1, product.columns)) for each in bias)
    return product if are_vectors else None


def _expand_product(module: GraphModule, node: Node) -> bool:
    """Replace a product if what reads it may have its columns apart."""
    if (product := _product(node)) is None:
        return False
    rows, axis = product.rows, product.rows.axis
    sizes = [rows.sizes[d] for d in rows.order]
    sizes[axis] = product.columns
    inverse = [rows.order.index(d) for d in range(len(sizes))]
    in_memory = node.meta["val"].new_empty(sizes).permute(inverse)

    def choose(result: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return in_memory.view(value.shape) if result in product.results else value

    try:
        changed = changes_by(product.results, choose, ANY_ORDER | OF_MATRICES)
    except (RuntimeError, ValueError):
        return False
    apply(module, changed)
    call = _Calls(node)
    tensor = call.in_order(rows)
    along = [product.columns if place == axis else 1 for place in range(len(sizes))]
    weight = product.weight
    if weight.meta["val"].dim() == 3:
        weight = call(aten.select.int, weight, 0, 0)
    weight = call.wide(weight)
    total = None
    for i in range(rows.sizes[-1]):
        factors = call(aten.view.default, call(aten.select.int, weight, int(product.is_transposed), i), along)
        term = call(aten.mul.Tensor, call(aten.slice.Tensor, tensor, axis, i, i + 1), factors)
        total = call(aten.add.Tensor, total, term) if total else term
    for each in product.bias:
        total = call(aten.add.Tensor, total, call(aten.view.default, call.wide(each), along))
    total = call(aten._to_copy.default, total, dtype=node.meta["val"].dtype)
    total.meta |= {"recompute": CheckpointPolicy.MUST_SAVE, USER_CAST: True}  # it is rounded in both passes
    total = call(aten.permute.default, total, inverse)
    for result in product.results:
        result.replace_all_uses_with(call(aten.view.default, total, list(result.meta["val"].shape)))
        _erase(result)
    return True


def _expand_weight_gradient(product: Node) -> bool:
    """Replace a product that sums over the rows of two tensors in the same order of memory."""
    *bias, transposed, other = product.args
    value = product.meta["val"]
    if bias or not _is_transpose(transposed) or (value.dim() == 3 and value.shape[0] > 1):
        return False
    first, second = _rows(transposed.args[0]), _rows(other)
    if first is None or second is None or first.order != second.order or first.sizes[:-1] != second.sizes[:-1]:
        return False
    call, last = _Calls(product), len(first.order) - 1
    gradient, input = call.in_order(first), call.wide(call.in_order(second))
    parts = []
    for i in range(first.sizes[-1]):
        term = call(aten.mul.Tensor, call(aten.slice.Tensor, gradient, first.axis, i, i + 1), input)
        parts.append(call(aten.unsqueeze.default, call(aten.sum.dim_IntList, term, [last]), 0))
    sums = call.summed(call(aten.cat.default, parts), [d + 1 for d in range(last) if d != first.axis])
    result = call(aten._to_copy.default, sums, dtype=value.dtype)
    product.replace_all_uses_with(call(aten.view.default, result, list(value.shape)))
    _erase(product)
    for rows in (first, second):
        _sum_lines_first(rows)
    return True


def _sum_lines_first(rows: _Rows) -> None:
    """Sum lines before other sums where all but the rows' elements are summed, as for the gradient of a bias: the
    program that reads the lines sums them, too."""
    shape, last = rows.tensor.meta["val"].shape, len(rows.order) - 1
    for node in [user for user in rows.tensor.users if user.target is aten.sum.dim_IntList and not user.kwargs]:
        value, over = node.meta["val"], {d % len(shape) for d in node.args[1] or range(len(shape))}
        kept = [d for d, size in enumerate(shape) if size != 1 and d not in over]
        if kept != [max(d for d, size in enumerate(shape) if size != 1)]:
            continue
        call = _Calls(node)
        sums = call(aten.sum.dim_IntList, call.wide(call.in_order(rows)), [last])
        sums = call.summed(sums, [d for d in range(last) if d != rows.axis])
        sums = call(aten._to_copy.default, sums, dtype=value.dtype)
        node.replace_all_uses_with(call(aten.view.default, sums, list(value.shape)))
        _erase(node)


def _is_transpose(node: Node) -> bool:
    """True if the operator swaps the rows and the columns of matrices."""
    last = node.meta["val"].dim() - 1 if node.target is aten.permute.default else 0
    return node.target is aten.t.default or (last > 0 and [*node.args[1]] == [*range(last - 1), last, last - 1])


def _without_ones(sizes) -> list[int]:
    return [size for size in sizes if size != 1]


def _erase(node: Node) -> None:
    """Erase a node that nobody reads, and its operands that nobody else reads."""
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for operand in operands:
        if not operand.users and operand.op == "call_function":
            _erase(operand)


class _Calls:
    """Adds nodes to a graph before one of its nodes."""

    def __init__(self, before: Node):
        self.before = before

    def __call__(self, target: Callable, *args, **kwargs) -> Node:
        with self.before.graph.inserting_before(self.before):
            node = self.before.graph.call_function(target, args, kwargs)
        node.meta["val"] = given_again(node, {})
        return node

    def in_order(self, rows: _Rows) -> Node:
        """The tensor with its dimensions in the order of memory."""
        return self(aten.permute.default, self(aten.view.default, rows.tensor, rows.sizes), rows.order)

    def wide(self, node: Node) -> Node:
        """The node in fp32."""
        return node if node.meta["val"].dtype == torch.float32 else self(aten._to_copy.default, node, dtype=torch.float)

    def summed(self, node: Node, dims: list[int]) -> Node:
        """Sums over these dimensions; the node itself if there are none, where PyTorch would sum over all."""
        return self(aten.sum.dim_IntList, node, dims) if dims else node
