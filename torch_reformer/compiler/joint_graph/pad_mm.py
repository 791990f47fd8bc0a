"""Pad matrices of 16-bit types whose rows do not begin at multiples of 16 bytes. The vendors' fast matrix-product
kernels don't take such matrices, and other kernels take three to seven times as long. A vocabulary of 30522 or 50257
words makes such rows, in the scores and in their gradient, and so do products along the 14 * 14 patches of an image
(MLP-Mixer, gMLP).

Zeros are added to the weight and the bias, so that the product has more columns, which nobody reads; and to each row of
an input or a gradient, so that products with it and sums of it include the zeros. The kernel that writes the rows or
casts the weight writes the zeros, too (lowering/constant_pad.py, passes/pad_casts.py). Products that are results of
the graph, whose strides are promised, are copied, and so are gradients that are inputs of the graph, if the loss is
computed outside.

Where two matrices are multiplied along padded rows, both have the zeros, so an infinity or NaN meets none of them. What
the other extra columns hold is never read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ...runtime.dtypes import NARROW
from ..ir.custom_ops import DONATED, scaled
from ..ir.fx_utils import VIEWS, constant_pad, given_again, is_element_wise, shares_memory
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, with_choice

aten = torch.ops.aten

DEVICES = {"cuda"}
_BYTES = 16
ALIGNED = 64  # elements: long rows also begin at cache lines; in short ones that would take too many zeros
_IN_FORWARD = "reformer_in_forward"  # in a node's meta: it pads a tensor that the forward may pad before saving it
LEAST_WIDTH, LEAST = 64, 1 << 20  # elements
DEEP = 256  # of so many terms in each sum of a product, padding saves more time than copying the result takes
_mm, _sum = aten.mm.default, aten.sum.dim_IntList
_PRODUCTS = {_mm, aten.addmm.default}
_TAGS = "recompute", "ac_graph_id", "stack_trace"  # what activation checkpointing and errors need of a node
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.alias.default}
_TRANSPOSED = {aten.t.default, aten.permute.default}


def pad_mm(joint: GraphModule) -> None:
    """Pad matrices of a joint graph, so that the forward and the backward pad them alike."""
    padding = _Padding(joint)
    for node in joint.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        padding.cast_before_transposing(node)
    for node in list(joint.graph.nodes):
        if node.target in _PRODUCTS:
            padding.pad_columns(node)
    for node in list(joint.graph.nodes):
        if node.target in (scaled, aten.clone.default) or is_element_wise(node) or node.op == "placeholder":
            padding.pad_rows(node)


def pad_before_saving(forward: GraphModule, backward: GraphModule) -> None:
    """Pad saved tensors in the forward if padding is all that the backward does with them."""
    (output,) = forward.graph.find_nodes(op="output")
    results = {node.name: node for node in output.all_input_nodes}
    for placeholder in backward.graph.find_nodes(op="placeholder"):
        saved, users = results.get(placeholder.name), list(placeholder.users)
        if saved is None or saved.op != "call_function" or [_IN_FORWARD in user.meta for user in users] != [True]:
            continue
        with forward.graph.inserting_before(output):
            padded = forward.graph.call_function(constant_pad, (saved, *users[0].args[1:]))
        padded.meta["val"] = placeholder.meta["val"] = users[0].meta["val"]
        output.replace_input_with(saved, padded)
        users[0].replace_all_uses_with(placeholder)
        backward.graph.erase_node(users[0])


def _missing(value) -> int:
    """The number of zeros that each row of a matrix needs; 0 for matrices that are aligned, or small."""
    if not isinstance(value, Tensor) or value.dim() < 2 or value.dtype not in NARROW:
        return 0
    columns = value.shape[-1]
    if value.device.type not in DEVICES or columns < LEAST_WIDTH or value.numel() < LEAST:
        return 0
    if not value.is_contiguous() or columns * value.itemsize % _BYTES == 0:
        return 0
    return -columns % (ALIGNED if columns >= 16 * ALIGNED else _BYTES // value.itemsize)


class _Padding:
    def __init__(self, joint: GraphModule):
        self.joint, self.graph = joint, joint.graph
        self.padded: set[Node] = set()  # weights and biases with zeros

    def cast_before_transposing(self, cast: Node) -> None:
        """Transpose what was cast, not the cast's operand, as in `x @ weight.t()` under autocast: a weight to which
        zeros can be added is contiguous."""
        matrix, is_transposed = _untransposed(cast.args[0])
        if is_transposed and cast.kwargs.keys() == {"dtype"} and _is_matrix(matrix):
            moved = self._called(cast, aten._to_copy.default, matrix, **cast.kwargs)
            moved.meta = cast.meta | {"val": moved.meta["val"]}
            self._put(self._called(cast, aten.permute.default, moved, [1, 0], like=cast), cast)

    def pad_columns(self, product: Node) -> None:
        """Add columns to a product with a weight, with or without a bias."""
        count, target = _missing(product.meta.get("val")), product.target
        *bias, input, factor = product.args
        weight, is_transposed = _untransposed(factor)
        if not count or product.kwargs or not _is_matrix(weight):
            return
        if not is_transposed and _size(weight) > _size(product):  # zeros in each of its rows cost a kernel
            return
        columns = product.meta["val"].shape[1]
        results = _graph_results(product)
        if not all(each.meta["val"].is_contiguous() for each in results):
            return
        if any(each.meta["val"].shape != (columns,) for each in bias):
            return
        if results and input.meta["val"].shape[1] < DEEP:
            return
        copies = [self._copied_result(result) for result in results]

        def choose(node: Node, value: Tensor, _) -> Tensor:
            return value.new_empty_strided(value.shape, (columns + count, 1)) if node is product else value

        changed = with_choice([product], choose, ANY_ORDER | OF_MATRICES)
        if changed:
            apply(self.joint, changed)
            bias = [self._with_zeros(each, count, 0) for each in bias]
            factor = self._factor(product, weight, is_transposed, count, 0 if is_transposed else 1)
            padded = self._called(product, target, *bias, input, factor, like=product)
            self._put(self._called(product, aten.slice.Tensor, padded, 1, 0, columns, like=product), product)
        else:
            for copy in copies:
                copy.replace_all_uses_with(copy.args[0])
                self.graph.erase_node(copy)

    def _copied_result(self, node: Node) -> Node:
        """Replace a result of the graph by a contiguous copy of it."""
        (output,) = self.graph.find_nodes(op="output")
        copy = self._called(output, aten.clone.default, node, memory_format=torch.contiguous_format)
        output.replace_input_with(node, copy)
        return copy

    def pad_rows(self, node: Node) -> None:
        """Pad the rows of an element-wise result, a copy, or an input of the graph that is read by matrix products and
        sums over rows only."""
        count = _missing(node.meta.get("val"))
        hoisted = node.args[0] if node.target is scaled else None
        if not count or (
            hoisted is not None and (DONATED not in hoisted.meta or not _are_sums(hoisted.users.keys() - {node}))
        ):
            return
        matrix, columns = node, node.meta["val"].shape[-1]
        while (view := _only_view(matrix)) is not None:
            matrix = view
        rows, *others = matrix.meta["val"].shape
        if others != [columns]:
            return
        users = list(matrix.users)
        if not all(_takes_padded_rows(user, matrix) for user in users) or _are_sums(users):
            return
        source = hoisted or node
        if source.op == "placeholder" and _depth(users, matrix) < DEEP:
            return
        padded = self._called(self._behind(source), constant_pad, source, [0, count], like=source)
        padded.meta[_IN_FORWARD] = True
        if hoisted is not None:
            padded.meta[DONATED] = True
            padded = self._called(node, scaled, padded, node.args[1], like=node)
        if padded.meta["val"].dim() != 2:
            padded = self._called(matrix, aten.view.default, padded, [rows, columns + count], like=matrix)
        for user in users:
            self._use(matrix, padded, user, count, columns)

    def _use(self, matrix: Node, padded: Node, user: Node, count: int, columns: int) -> None:
        """Make an operator read the matrix with padded rows instead."""
        call = functools.partial(self._called, user, like=user)
        if user.target is _sum:
            sums = call(_sum, padded, *user.args[1:], **user.kwargs)
            self._put(call(aten.slice.Tensor, sums, -1, 0, columns), user)
        elif user.target in _PRODUCTS and user.args[-2] is matrix:
            weight, is_transposed = _untransposed(user.args[-1])
            factor = self._factor(user, weight, is_transposed, count, 1 if is_transposed else 0)
            _untransposed(factor)[0].meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
            self._put(call(user.target, *user.args[:-2], padded, factor), user)
        elif user.target is _mm:
            result = call(aten.slice.Tensor, call(_mm, user.args[0], padded), 1, 0, columns)
            self._put(call(aten.clone.default, result, memory_format=torch.contiguous_format), user)
        else:
            for product in list(user.users):
                transposed = self._called(product, aten.permute.default, padded, [1, 0], like=user)
                result = self._called(product, _mm, transposed, product.args[1], like=product)
                self._put(self._called(product, aten.slice.Tensor, result, 0, 0, columns, like=product), product)

    def _factor(self, product: Node, weight: Node, is_transposed: bool, count: int, dim: int) -> Node:
        """The second factor of a product: a weight with more rows (dimension 0) or columns (1), transposed again."""
        weight = self._with_zeros(weight, count, dim)
        return self._called(product, aten.permute.default, weight, [1, 0], like=product) if is_transposed else weight

    def _with_zeros(self, node: Node, count: int, dim: int) -> Node:
        """A weight or bias with `count` more elements in a dimension, with all its zeros at once."""
        source, pads = node.args if node in self.padded else (node, [0] * 2 * node.meta["val"].dim())
        end = len(pads) - 1 - 2 * dim  # pads begin with the last dimension
        pads = [pad + count if i == end else pad for i, pad in enumerate(pads)]
        for user in source.users:
            if user in self.padded and user.args[1] == pads:
                return user
        padded = self._called(self._behind(source), constant_pad, source, pads, like=source)
        self.padded.add(padded)
        return padded

    def _behind(self, node: Node) -> Node:
        """The first node that may read this one."""
        inputs = self.graph.find_nodes(op="placeholder") if node.op == "placeholder" else [node]
        return inputs[-1].next

    def _called(self, before: Node, target: Callable, *args, like: Node | None = None, **kwargs) -> Node:
        """Add a call. like: the node in whose place it is, whether that is recomputed or saved."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {key: like.meta[key] for key in _TAGS if key in like.meta} if like is not None else {}
        node.meta["val"] = given_again(node, {})
        return node

    def _put(self, replacement: Node, node: Node) -> None:
        """Replace a node by one with equal elements, and erase what is not used any more."""
        replacement.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(replacement)
        todo = [node]
        while todo:
            unused = todo.pop()
            if not unused.users and unused.op == "call_function":
                todo += [each for each in unused.all_input_nodes if each.target in {*VIEWS, *_TRANSPOSED, scaled}]
                self.graph.erase_node(unused)


def _depth(users: Iterable[Node], matrix: Node) -> int:
    """The number of multiplications, by products among the users of a matrix, of each of its elements."""
    readers = (each for user in users for each in (user.users if _untransposed(user) == (matrix, True) else [user]))
    products = (each for each in readers if each.target in _PRODUCTS)
    return sum(product.meta["val"].shape[int(product.args[-1] is not matrix)] for product in products)


def _only_view(node: Node) -> Node | None:
    """A view by other sizes, if nothing but sums reads the node besides: the kernel that writes the rows sums them."""
    others = [user for user in node.users if user.target is not _sum]
    return others[0] if len(others) == 1 and others[0].target in _RESHAPES else None


def _are_sums(nodes: Iterable[Node]) -> bool:
    return all(node.target is _sum or (node.target in _RESHAPES and _are_sums(node.users)) for node in nodes)


def _is_matrix(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == 2 and value.is_contiguous()


def _size(node: Node) -> int:
    return node.meta["val"].numel()


def _graph_results(node: Node) -> list[Node]:
    """The node and its views, as far as they are results of the graph, whose strides are promised."""
    results = [node] if any(user.op == "output" for user in node.users) else []
    views = [user for user in node.users if user.op != "output" and shares_memory(user)]
    return results + [result for view in views for result in _graph_results(view)]


def _untransposed(node: Node) -> tuple[Node, bool]:
    """The matrix before all transposes, and True if their number is odd."""
    is_transposed = False
    while node.target is aten.t.default or (node.target is aten.permute.default and list(node.args[1]) == [1, 0]):
        node, is_transposed = node.args[0], not is_transposed
    return node, is_transposed


def _takes_padded_rows(user: Node, matrix: Node) -> bool:
    """True if the operator's result can be had from the matrix with zeros behind each of its rows."""
    if user.target is _sum:
        return user.args[1] is not None and list(user.args[1]) in ([0], [-2])
    if user.target in _PRODUCTS and user.args[-2] is matrix:
        weight, _ = _untransposed(user.args[-1])
        return weight is not matrix and _is_matrix(weight) and not user.kwargs and matrix not in user.args[:-2]
    if user.target is _mm:  # the second factor: the result is copied, without the columns for the zeros
        return _untransposed(user.args[0])[0] is not matrix and _size(user) <= _size(matrix)
    return _untransposed(user) == (matrix, True) and all(_is_first_factor(user, product) for product in user.users)


def _is_first_factor(node: Node, product: Node) -> bool:
    return product.target is _mm and product.args[0] is node and product.args[1] is not node
