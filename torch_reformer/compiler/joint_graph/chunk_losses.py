"""Compute scores, their loss and their gradients for some rows after the others, so that the scores of few rows exist
at any time: a vocabulary of 128256 words makes 2 GB of scores for 8192 words in bf16.

Where a matrix product's result is used by losses alone, the gradient of the scores is hoisted into the forward
(hoist_loss_gradients.py). So are here the products that read it, which give the gradients of the product's operands:
they are linear in the gradient of the loss, too. What is then computed between the product and its gradients is row by
row, but for sums over rows: the loss, and the weight's and the bias's gradients, which add up in fp32. It is repeated
for chunks of the rows, and each chunk's product waits for the results of the chunk before.

The results are those of the whole: NaN and infinity stay in their rows and columns, and what the loss divides by (the
number of labels) is computed of the labels of all rows. Hsu et al. (Liger kernel: efficient Triton kernels for LLM
training, 2024) compute the loss of a linear layer in this way, as a module that users call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ...runtime.dtypes import NARROW
from ..ir.custom_ops import DONATED, USER_CAST, add_product, after, scaled
from ..ir.fx_utils import CONSTANTS, VIEWS, given_again, is_operator, is_random, size_of
from ..ir.product import PRODUCTS
from .chunk_count import chunk_bounds
from .row_chunks import CannotChunk, Rows

aten = torch.ops.aten

_MEANS = (aten.mean.dim, aten.mean.default)
_LINEAR = VIEWS | {aten._unsafe_view.default, aten.mm.default, aten.sum.dim_IntList}


def chunk_losses(joint: GraphModule) -> None:
    """Chunk the rows of products whose results only losses use, where that saves memory and costs little time."""
    for gradient in joint.graph.find_nodes(op="call_function", target=scaled):
        products = _products_before(gradient) if gradient.users else []
        if len(products) != 1:
            continue
        try:
            loss = _Loss(joint, products[0], gradient)
        except CannotChunk:
            continue
        bounds = chunk_bounds(joint, products[0], loss.rows)
        if len(bounds) > 1:
            _Chunks(joint, loss).run(bounds)


def _products_before(gradient: Node) -> list[Node]:
    """Matrix products of about a gradient's size from which it follows without another such product."""
    seen, todo, products = {gradient}, [gradient.args[0]], []
    while todo:
        node = todo.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        if node.target not in PRODUCTS:
            todo += node.all_input_nodes
        elif 2 * size_of(node) >= size_of(gradient) and not node.kwargs:
            products.append(node)
    return products


class _Loss:
    """The nodes between a product and the gradients of its operands.

    Attributes:
        followers: the nodes that depend on the product and are computed in chunks.
        factors: the gradient of the loss by which a follower is multiplied, for those that are.
        results: followers that others read, or sums over the rows.

    Raises:
        CannotChunk: the scores are used otherwise, or something is not computed row by row.
    """

    def __init__(self, joint: GraphModule, product: Node, gradient: Node):
        if not size_of(product) or not product.args[-2].meta["val"].is_contiguous():
            raise CannotChunk
        self.product, self.place = product, {node: place for place, node in enumerate(joint.graph.nodes)}
        self.rows = Rows(product)
        self.followers: dict[Node, None] = {product: None}
        self.factors: dict[Node, Node] = {}
        self._others: set[Node] = set()  # nodes that depend on the product and are not computed in chunks
        self._backward = {node for node in joint.graph.find_nodes(op="placeholder") if "tangents" in str(node.target)}
        for node in [*joint.graph.nodes][self.place[product] + 1 :]:
            self._visit(node)
        self.results = [
            node
            for node in self.followers
            if node in self.rows.summed or any(user not in self.followers for user in node.users)
        ]
        ends = [node for node in self.results if node in self.factors and node.target is aten.mm.default]
        if gradient not in self.followers or not ends:
            raise CannotChunk
        for node in self.results:
            if node not in self.rows.summed and node not in ends and self.rows.is_wide(node):
                raise CannotChunk
            if not node.meta["val"].is_contiguous():
                raise CannotChunk
        value = product.meta["val"]
        has_wide_products = value.device.type == "cuda" and not torch.version.hip
        self.is_widened = value.dtype in NARROW and has_wide_products
        self.early = self._read_before()

    def _visit(self, node: Node) -> None:
        operands = node.all_input_nodes
        if not self._backward.isdisjoint(operands):
            self._backward.add(node)
        if all(operand not in self.followers and operand not in self._others for operand in operands):
            return
        if node.op == "call_function" and self._others.isdisjoint(operands) and self._may_follow(node):
            try:
                if node.target is scaled:
                    self.rows.dims[node] = self.rows.dims[node.args[0]]
                    self.factors[node] = node.args[1]
                else:
                    self.rows.add(node)
                self.followers[node] = None
                return
            except CannotChunk:
                pass
        self._others.add(node)

    def _may_follow(self, node: Node) -> bool:
        """True if the node reads rows nodes only of those that depend on the product, and if it is linear in the loss's
        gradient if it depends on that."""
        for operand in node.all_input_nodes:
            is_end = operand in self.rows.summed or operand.target is aten.mm.default
            if is_end and operand in self.followers and operand is not self.product:
                return False
        late = [operand for operand in node.all_input_nodes if operand in self._backward]
        if node.target is scaled:
            return node.args[0] in self.followers and node.args[0] not in self.factors
        if not late:
            return True
        if len(late) > 1 or late[0] not in self.factors:
            return False
        if node.target is aten.slice_scatter.default:
            if node.args[1] is not late[0] or not _is_zero(node.args[0]):
                return False
        elif node.target not in _LINEAR:
            return False
        self.factors[node] = self.factors[late[0]]
        return True

    def _read_before(self) -> list[Node]:
        """Nodes behind the product on which its followers depend, in order. They are computed before it instead."""
        rows = self.rows
        chunked = rows.dims.keys() | rows.summed.keys()
        todo = [each for node in chunked if node.target is not scaled for each in node.all_input_nodes]
        before: set[Node] = set()
        while todo:
            node = todo.pop()
            if node in before or node in self.followers or self.place[node] < self.place[self.product]:
                continue
            before.add(node)
            todo += node.all_input_nodes
            if not _may_move(node):
                raise CannotChunk
        return sorted(before, key=self.place.__getitem__)


def _may_move(node: Node) -> bool:
    """True for a constant, or an operator of PyTorch's that changes nothing in place and draws no random numbers."""
    if node.op == "get_attr":
        return True
    return is_operator(node) and not node.target._schema.is_mutable and not is_random(node)


def _is_zero(node: Node) -> bool:
    return node.target in CONSTANTS and CONSTANTS[node.target](*node.args) == 0


class _Chunks:
    """Rewrites a graph such that a loss is computed in chunks."""

    def __init__(self, joint: GraphModule, loss: _Loss):
        self.joint, self.graph, self.loss, self.rows = joint, joint.graph, loss, loss.rows
        self.totals: dict[Node, Node] = {}
        self.parts: dict[Node, list[Node]] = {node: [] for node in loss.results if node not in self.rows.summed}

    def run(self, bounds: Sequence[tuple[int, int]]) -> None:
        """bounds: where each chunk begins and ends, the last one at the number of groups of rows."""
        product = self.loss.product
        for node in self.loss.early:
            product.prepend(node)
        before: list[Node] = []
        for bound in bounds:
            before = self._chunk(*bound, bounds[-1][1], before)
        gradients = [node for node in self.loss.results if node in self.loss.factors or DONATED in node.meta]
        computed = [self._replace(node, self._total(node)) for node in gradients]
        for node in self.loss.results:
            if node not in gradients:
                # So the forward needs the gradients. Otherwise a partition within a memory budget could leave the last
                # chunk to the backward.
                self._replace(node, self._add(after, self._total(node), computed))
        for node in reversed(self.loss.followers):
            if not node.users:
                self.graph.erase_node(node)

    def _add(self, target: Callable, *args, **kwargs) -> Node:
        with self.graph.inserting_before(self.loss.product):
            node = self.graph.call_function(target, args, kwargs)
        if node.all_input_nodes:
            node.meta["val"] = given_again(node, {})
        else:
            with self.loss.product.meta["val"].fake_mode:
                node.meta["val"] = target(*args, **kwargs)
        return node

    def _chunk(self, begin: int, end: int, count: int, before: list[Node]) -> list[Node]:
        """Add a chunk, which is computed after the nodes `before`. Returns the chunk's results."""
        rows, product = self.rows, self.loss.product
        of: dict[Node, Node] = {}

        def part(size: int) -> int:
            return size * (end - begin) // count

        def chunk_of(node: Node) -> Node:
            if node not in of and node in rows.read:
                dim = rows.read[node]
                size = node.meta["val"].shape[dim]
                of[node] = self._add(aten.slice.Tensor, node, dim, size * begin // count, size * end // count)
            return of.get(node, node)

        input = product.args[-2]
        if before:
            of[input] = self._add(after, chunk_of(input), before)
        sums = []
        for node in sorted(rows.dims.keys() | rows.summed.keys(), key=self.loss.place.__getitem__):
            if node.target is scaled:
                of[node] = of[node.args[0]]
            elif node in rows.summed:
                sums.append(self._add_up(node, chunk_of))
            else:
                args, kwargs = rows.copy(node, chunk_of, part)
                of[node] = self._add(node.target, *args, **kwargs)
                if USER_CAST in node.meta:
                    of[node].meta[USER_CAST] = True
        for node, parts in self.parts.items():
            parts.append(of[node])
        return sums + [of[node] for node in self.parts]

    def _add_up(self, node: Node, chunk_of: Callable[[Node], Node]) -> Node:
        """Add the sum over a chunk's rows to the total."""
        total = self.totals.get(node)
        dtype = node.meta["val"].dtype
        wide = torch.float32 if dtype in NARROW else dtype
        args = torch.fx.map_arg(node.args, chunk_of)
        if node.target is not aten.mm.default:
            over, *keep = args[1:] or [[]]
            kwargs = {"dtype": wide} if wide != dtype else dict(node.kwargs)
            sum = self._add(aten.sum.dim_IntList, args[0], over, *keep, **kwargs)
        elif total is not None and (wide == dtype or self.loss.is_widened):
            self.totals[node] = self._add(add_product, total, *args)
            return self.totals[node]
        elif wide == dtype:
            sum = self._add(node.target, *args)
        elif self.loss.is_widened:
            sum = self._add(aten.mm.dtype, *args, wide)
        else:
            sum = self._add(aten._to_copy.default, self._add(node.target, *args), dtype=wide)
        self.totals[node] = sum if total is None else self._add(aten.add.Tensor, total, sum)
        return self.totals[node]

    def _total(self, node: Node) -> Node:
        """The whole of a node, of all chunks."""
        if node in self.parts:
            return self._add(aten.cat.default, self.parts[node], self.rows.dims[node])
        total = self.totals[node]
        if node.target in _MEANS:
            size = node.args[0].meta["val"].numel()
            total = self._add(aten.div.Tensor, total, size // max(node.meta["val"].numel(), 1))
        return total

    def _replace(self, node: Node, total: Node) -> Node:
        """Make others read the total instead of a node; times the loss's gradient, if the node depends on it. Returns
        the total in the type that others read."""
        cast = _cast_of(node, total)
        if cast is None and total.meta["val"].dtype != node.meta["val"].dtype:
            total = self._add(aten._to_copy.default, total, dtype=node.meta["val"].dtype)
        factor = self.loss.factors.get(node)
        if factor is None:
            total.meta |= {key: node.meta[key] for key in ("recompute", DONATED) if key in node.meta}
            result = total
        else:
            total.meta |= {"recompute": CheckpointPolicy.MUST_SAVE, DONATED: True}
            with self.graph.inserting_before(node):
                result = self.graph.call_function(scaled, (total, factor))
            result.meta["val"] = given_again(result, {})
        node.replace_all_uses_with(result, lambda user: user not in self.loss.followers)
        if cast is not None:
            (view,) = cast.all_input_nodes
            chain = [view]
            while chain[-1] is not result:
                chain += chain[-1].all_input_nodes
            for each in reversed(chain[:-1]):
                each.meta["val"] = given_again(each, {})
            cast.replace_all_uses_with(view)
            self.graph.erase_node(cast)
        return total


def _cast_of(node: Node, total: Node) -> Node | None:
    """The cast of a node, perhaps of a view of it, to the type of its total, if nothing else reads the node."""
    if total.meta["val"].dtype == node.meta["val"].dtype:
        return None
    while len(node.users) == 1:
        (node,) = node.users
        if node.target is aten._to_copy.default:
            value, source = node.meta["val"], node.args[0].meta["val"]
            same = value.dtype == total.meta["val"].dtype and value.stride() == source.stride()
            return node if same and USER_CAST not in node.meta else None
        if node.target not in VIEWS:
            return None
    return None
