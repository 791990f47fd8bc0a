"""Flatten tensors in the order of their memory where the order of the flattened elements does not matter.

Weight standardisation makes a row of each filter, whose mean and variance it needs. If filters are in channels_last,
PyTorch copies them to make rows, and again to make filters of rows, also in the gradient. Between the two there are
only element-wise operations and reductions of whole rows, so that rows may have any order of elements: that of memory,
which needs no copies. Results of the graph keep their strides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fx_utils import CONSTANTS, REDUCTIONS, given_again, is_element_wise
from ..ir.layout import Layout
from .propagate_memory_format import ANY_ORDER, apply, with_choice

aten = torch.ops.aten
_VIEWS = {aten.view.default, aten._unsafe_view.default}
_KEEP_ROWS = _VIEWS | {aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim, aten.alias.default}


@dataclass(eq=False)
class _Rows:
    """Tensors whose last dimension consists of the same dimensions, which are flattened.

    Attributes:
        sizes: of these dimensions.
        order: these dimensions in the order of memory, outermost first.
        begin: views of copies of filters, which flatten them.
        end: views that make filters of rows again.
        is_valid: no operation needs the elements of a row in PyTorch's order.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    begin: list[Node] = field(default_factory=list)
    end: list[Node] = field(default_factory=list)
    is_valid: bool = True


def flatten_in_memory_order(module: GraphModule) -> None:
    """Replace the copies by permutations."""
    for rows in _found(module):
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        (output,) = module.graph.find_nodes(op="output")

        def choose(node: Node, value: Tensor, changed: dict[Node, object], rows: _Rows = rows) -> Tensor:
            if node not in rows.end:
                return value
            leading = value.shape[: -len(rows.sizes)]
            ordered = Layout.row_major((*leading, *(rows.sizes[d] for d in rows.order))).strides
            strides = tuple(ordered[d] for d in _inverse(rows, len(leading)))
            return value.new_empty_strided(value.shape, strides)

        changed = with_choice(nodes, choose, ANY_ORDER)
        returned = [node for node in changed if node in output.all_input_nodes]
        is_better = len(returned) <= len(rows.begin) and not any(map(_is_convolution, changed))
        if is_better and (changed or not rows.end):
            _rewrite(module, rows)
            apply(module, changed)


def _is_convolution(node: Node) -> bool:
    """True for a convolution, whose result is a batch of images that much else is computed of."""
    return node.target is aten.convolution.default


def _found(module: GraphModule) -> list[_Rows]:
    """All rows that may have another order."""
    rows_of: dict[Node, _Rows] = {}
    uniform: set[Node] = set()
    for node in module.graph.nodes:
        if _is_uniform(node, uniform):
            uniform.add(node)
        if (rows := _begins(node)) is not None:
            rows_of[node] = rows
            continue
        flattened = [input for input in node.all_input_nodes if input in rows_of]
        if not flattened:
            continue
        rows = rows_of[flattened[0]]
        for other in flattened[1:]:
            _unite(rows_of, rows, rows_of[other])
        others = (input for input in node.all_input_nodes if input not in rows_of and input not in uniform)
        if _is_of_elements(node) and not any(others):
            rows_of[node] = rows
        elif node.target in _KEEP_ROWS and node.meta["val"].shape[-1] == math.prod(rows.sizes):
            rows_of[node] = rows
        elif node.target in _VIEWS and node.meta["val"].shape[-len(rows.sizes) :] == rows.sizes:
            rows.end.append(node)
        elif not _reduces_rows(node):
            rows.is_valid = False
    return [rows for rows in dict.fromkeys(rows_of.values()) if rows.is_valid]


def _begins(node: Node) -> _Rows | None:
    """The rows that a view makes of a copy which is there only for that; None if it does something else."""
    if node.target not in _VIEWS or not isinstance(copy := node.args[0], Node):
        return None
    if copy.target is not aten.clone.default or copy.kwargs.get("memory_format") != torch.contiguous_format:
        return None
    filters, result = copy.args[0].meta["val"], node.meta["val"]
    if not result.dim() or not result.numel():
        return None
    for count in range(2, filters.dim() + 1):
        sizes = tuple(filters.shape[-count:])
        if math.prod(sizes) != result.shape[-1]:
            continue
        strides = filters.stride()[-count:]
        order = tuple(sorted(range(count), key=lambda d: -strides[d]))
        rows = _Rows(sizes, order, [node])
        leading = filters.dim() - count
        of_dims = [(filters.shape[d], filters.stride(d)) for d in _permutation(rows, leading)]
        is_row_major = Layout(*map(tuple, zip(*of_dims, strict=True))).is_row_major
        return rows if is_row_major and order != tuple(range(count)) else None
    return None


def _permutation(rows: _Rows, leading: int) -> list[int]:
    """Dimensions of filters in the order of memory, after so many others."""
    return [*range(leading), *(leading + d for d in rows.order)]


def _inverse(rows: _Rows, leading: int) -> list[int]:
    """The permutation back."""
    return [*range(leading), *(leading + rows.order.index(d) for d in range(len(rows.order)))]


def _unite(rows_of: dict[Node, _Rows], rows: _Rows, others: _Rows) -> None:
    """Make one of both, as an operation reads both."""
    if rows is others:
        return
    if (rows.sizes, rows.order) != (others.sizes, others.order):
        rows.is_valid = others.is_valid = False
        return
    rows.begin += others.begin
    rows.end += others.end
    rows.is_valid &= others.is_valid
    rows_of |= {node: rows for node, of_node in rows_of.items() if of_node is others}


def _is_uniform(node: Node, uniform: set[Node]) -> bool:
    """True if all elements of a row are equal, or if they are one."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return False  # sizes may depend on values
    if not value.dim() or value.shape[-1] == 1 or node.target in CONSTANTS:
        return True
    if node.target is aten.expand.default:
        operand = node.args[0].meta["val"]
        return not operand.dim() or operand.shape[-1] == 1
    return _is_of_elements(node) and bool(node.all_input_nodes) and uniform.issuperset(node.all_input_nodes)


def _is_of_elements(node: Node) -> bool:
    """True for an element-wise operation, and for a copy. Random numbers stay at their places."""
    is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    if is_random or not isinstance(node.meta.get("val"), Tensor):
        return False
    return is_element_wise(node) or node.target is aten.clone.default


def _reduces_rows(node: Node) -> bool:
    """True for a reduction of whole rows."""
    if node.target not in REDUCTIONS:
        return False
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = [dims] if isinstance(dims, int) else dims
    rank = node.args[0].meta["val"].dim()
    return not dims or rank - 1 in {dim % rank for dim in dims}


def _rewrite(module: GraphModule, rows: _Rows) -> None:
    """Flatten filters in the order of memory, and make filters of rows in that order."""
    graph = module.graph
    for node in rows.begin:
        copy = node.args[0]
        filters = copy.args[0]
        with graph.inserting_before(node):
            order = _permutation(rows, filters.meta["val"].dim() - len(rows.sizes))
            permuted = graph.call_function(aten.permute.default, (filters, order))
        permuted.meta["val"] = given_again(permuted, {})
        node.args = permuted, *node.args[1:]
        if not copy.users:
            graph.erase_node(copy)
    for node in rows.end:
        source, value = node.args[0], node.meta["val"]
        leading = tuple(value.shape[: -len(rows.sizes)])
        sizes = [*leading, *(rows.sizes[d] for d in rows.order)]
        with graph.inserting_before(node):
            view = graph.call_function(aten.view.default, (source, sizes))
        view.meta["val"] = given_again(view, {})
        node.target, node.args = aten.permute.default, (view, _inverse(rows, len(leading)))
