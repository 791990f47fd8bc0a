"""Rows of a graph's tensors that can be computed in chunks.

A *rows* node has a dimension, its rows, such that each of its rows is computed from the same rows of its operands. Rows
that lie in groups (a view of [sequences * words, classes] as [sequences, words, classes]) are chunked by groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from ..ir.fx_utils import SUMS, constant_pad, is_element_wise, is_operator, is_random, size_of
from ..ir.product import PRODUCTS

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default)
_SAME = (aten.alias.default, aten.detach.default, aten.clone.default)
_EXTREMES = (aten.amax.default, aten.amin.default)
_SUMMED = "summed"  # in place of a dimension: the result is a sum over the rows
_WIDE = 8  # a tensor is wide if it has at least one of so many of the product's elements


class CannotChunk(Exception):
    """The rows of a node do not depend on the same rows of its operands only, or no rule says so."""


@dataclass
class Rows:
    """The nodes of a joint graph that are computed of rows of a matrix product, and what they read.

    Args:
        product: the matrix product whose rows are chunked.

    Attributes:
        dims: the dimension that is the rows, of each rows node.
        read: the same of other nodes, which are sliced.
        summed: sums over the rows.
    """

    product: Node
    dims: dict[Node, int] = field(default_factory=dict)
    read: dict[Node, int] = field(default_factory=dict)
    summed: dict[Node, None] = field(default_factory=dict)

    def __post_init__(self):
        self.dims[self.product] = 0
        self.read[self.product.args[-2]] = 0
        if self.product.target is aten.addmm.default:
            self._needs_broadcast(self.product, 0, self.product.args[:1])

    def __contains__(self, node: Node) -> bool:
        return node in self.dims or node in self.read

    def is_wide(self, node: Node) -> bool:
        return size_of(node) * _WIDE >= size_of(self.product)

    def add(self, node: Node) -> None:
        """Add a node that reads rows nodes.

        Raises:
            CannotChunk: the node cannot be computed in chunks.
        """
        before = dict(self.dims), dict(self.read)
        try:
            dim = self._dim_of(node)
        except CannotChunk:
            self.dims, self.read = before
            raise
        if dim is _SUMMED:
            self.summed[node] = None
        else:
            self.dims[node] = dim

    def _dim_of(self, node: Node):
        """The dimension of the node's rows, or _SUMMED."""
        target, args = node.target, node.args
        if is_random(node):
            raise CannotChunk
        if target in PRODUCTS:
            return self._dim_of_product(node)
        is_scatter = target is aten.slice_scatter.default
        if is_element_wise(node) or target is aten.clone.default or is_scatter:
            dim = self._dim_of_broadcast(node)
            if is_scatter and (args[2] if len(args) > 2 else 0) % len(_shape(node)) == dim:
                raise CannotChunk
            return dim
        operand = args[0]
        if not isinstance(operand, Node) or operand not in self.dims:
            raise CannotChunk
        dim, rank = self.dims[operand], operand.meta["val"].dim()
        if target in SUMS or target in _EXTREMES:
            over = _reduced(node)
            if dim in over:
                if target in _EXTREMES:
                    raise CannotChunk
                return _SUMMED
            keeps = len(args) > 2 and args[2]
            return dim if keeps else dim - sum(each < dim for each in over)
        if target in _SAME or target is constant_pad and 2 * (rank - dim) > len(args[1]):
            return dim
        if target in _RESHAPES and dim == 0 and _shape(node):
            return 0
        if target is aten.slice.Tensor and (args[1] if len(args) > 1 else 0) % rank != dim:
            return dim
        if target is aten.permute.default:
            return [each % rank for each in args[1]].index(dim)
        if target is aten.unsqueeze.default:
            return dim + (args[1] % (rank + 1) <= dim)
        if target is aten.squeeze.dims and dim not in (over := {each % rank for each in args[1]}):
            return dim - sum(each < dim for each in over)
        if target is aten.expand.default:
            return dim + len(_shape(node)) - rank
        raise CannotChunk

    def _dim_of_product(self, node: Node):
        one, other = node.args[-2:]
        if node.target is aten.addmm.default or node.kwargs:
            raise CannotChunk
        dims = self.dims.get(one), self.dims.get(other)
        if dims == (0, None):
            return 0
        if dims == (1, None):
            self._needs(other, 0)
        elif dims == (None, 0):
            self._needs(one, 1)
        elif dims != (1, 0):
            raise CannotChunk
        return _SUMMED

    def _dim_of_broadcast(self, node: Node) -> int:
        rank = len(_shape(node))
        operands = [each for each in node.all_input_nodes if isinstance(each.meta["val"], Tensor)]
        (dim, *others) = {self.dims[each] + rank - len(_shape(each)) for each in operands if each in self.dims}
        if others:
            raise CannotChunk
        self._needs_broadcast(node, dim, [each for each in operands if each not in self.dims])
        return dim

    def _needs_broadcast(self, node: Node, dim: int, operands) -> None:
        """Note that rows of a node need rows of these operands, as far as they are not broadcast."""
        shape = _shape(node)
        for operand in operands:
            of_operand = _shape(operand)
            own = dim - (len(shape) - len(of_operand))
            if own >= 0 and of_operand[own] == shape[dim]:
                self._needs(operand, own)
            elif own >= 0 and of_operand[own] != 1:
                raise CannotChunk

    def _needs(self, node: Node, dim: int) -> None:
        """Note that rows of a node from outside are needed. Wide ones that are computed of small tensors, such as a
        comparison of classes with all classes, are computed in chunks, too."""
        known = self.dims.get(node, self.read.get(node))
        if known not in (None, dim):
            raise CannotChunk
        if known is not None:
            return
        needs = self._operands_of(node, dim)
        if needs is None:
            self.read[node] = dim
            return
        for operand, of_operand in needs.items():
            self._needs(operand, of_operand)
        self.dims[node] = dim

    def _operands_of(self, node: Node, dim: int) -> dict[Node, int] | None:
        """Operands of a wide node of which rows are needed, with the dimensions; None if the node is to be sliced."""
        if not is_operator(node) or is_random(node) or "recompute" in node.meta:
            return None
        operands, shape = node.all_input_nodes, _shape(node)
        if not (self.is_wide(node) or any(map(self.is_wide, operands))):
            return None
        target, args = node.target, cast(Any, node.args)
        if target is aten.full.default:
            return {}
        if is_element_wise(node) or target is aten.expand.default:
            needs = {}
            for operand in operands:
                own = dim - (len(shape) - len(_shape(operand)))
                if own >= 0 and _shape(operand)[own] == shape[dim]:
                    needs[operand] = own
            return needs
        if target in _SAME:
            return {operands[0]: dim}
        if target in _RESHAPES and dim == 0 and len(_shape(operands[0])):
            return {operands[0]: 0}
        if target is aten.permute.default:
            return {operands[0]: args[1][dim] % len(shape)}
        if target is aten.unsqueeze.default and (place := args[1] % len(shape)) != dim:
            return {operands[0]: dim - (place < dim)}
        if target in SUMS or target in _EXTREMES:
            over = _reduced(node)
            left = [each for each in range(len(_shape(operands[0]))) if each not in over or len(args) > 2 and args[2]]
            return {operands[0]: left[dim]} if left[dim] not in over else None
        return None

    def sizes(self) -> list[int]:
        """Numbers of rows of all nodes that are chunked or sliced."""
        return [_shape(node)[dim] for node, dim in (self.dims | self.read).items()]

    def copy(self, node: Node, of: Callable[[Node], Node], part: Callable[[int], int]) -> tuple[tuple, dict]:
        """Arguments of a chunk of a node.

        Args:
            of: the chunk of an operand.
            part: the number of rows in the chunk, of so many.
        """
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), of)
        if node.target in (*_RESHAPES, aten.expand.default, aten.full.default):
            place = 0 if node.target is aten.full.default else 1
            sizes, dim = list(_shape(node)), self.dims[node]
            sizes[dim] = part(sizes[dim])
            args = (*args[:place], sizes, *args[place + 1 :])
        return args, kwargs


def _shape(node: Node) -> torch.Size:
    return node.meta["val"].shape


def _reduced(node: Node) -> set[int]:
    """The dimensions that a reduction reduces."""
    rank = len(_shape(node.args[0]))
    dims = node.args[1] if len(node.args) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims
    return {each % rank for each in dims} if dims and rank else set(range(rank))
