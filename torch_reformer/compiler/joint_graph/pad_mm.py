"""Products of matrices whose rows begin at no multiples of 16 bytes, which the vendors' fast kernels of 16-bit types
don't take: others need three to seven times as long. A vocabulary of 30522 or 50257 words makes such rows, of scores
and of their gradient. Zeros are added: to the weight and the bias, so that the scores' product has more columns, of
which nobody reads anything; and to each row of the gradient, so that what multiplies it or sums it up goes over more of
them. Who writes the gradient or casts the weight writes them where zeros are (lowering/constant_pad.py, passes/pad_casts.py).
Scores that are results of the graph, whose strides are promised, are copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ...runtime.dtypes import NARROW
from ..ir.custom_ops import DONATED, scaled
from ..ir.fx_utils import VIEWS, constant_pad, given_again, is_element_wise
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, with_choice

aten = torch.ops.aten

DEVICES = {"cuda"}
_BYTES = 16
ALIGNED = 64  # elements: long rows begin at lines of caches, too; short ones would have many zeros
_IN_FORWARD = "reformer_in_forward"  # in a node's meta: zeros that the forward adds to what it saves
LEAST_WIDTH, LEAST = 64, 1 << 20  # elements
DEEP = 256  # terms of a product's sums, of which a copy of its result takes less time than is gained
_mm, _sum = aten.mm.default, aten.sum.dim_IntList
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.alias.default}
_TRANSPOSED = {aten.t.default, aten.permute.default}


def pad_mm(joint: GraphModule) -> None:
    """Adds zeros in a joint graph, so that forward and backward have them alike."""
    padding = _Padding(joint)
    for node in list(joint.graph.nodes):
        if node.target in (_mm, aten.addmm.default):
            padding.pad_columns(node)
    for node in list(joint.graph.nodes):
        if node.target is scaled or is_element_wise(node):
            padding.pad_rows(node)
    joint.recompile()


def pad_before_saving(forward: GraphModule, backward: GraphModule) -> None:
    """Has the forward add the zeros to what it saves, where the backward would do nothing else with it first."""
    (output,) = forward.graph.find_nodes(op="output")
    results = {node.name: node for node in output.all_input_nodes}
    for given in backward.graph.find_nodes(op="placeholder"):
        saved, users = results.get(given.name), list(given.users)
        if saved is None or saved.op != "call_function" or [_IN_FORWARD in each.meta for each in users] != [True]:
            continue
        with forward.graph.inserting_before(output):
            longer = forward.graph.call_function(constant_pad, (saved, *users[0].args[1:]))
        longer.meta["val"] = given.meta["val"] = users[0].meta["val"]
        output.replace_input_with(saved, longer)
        users[0].replace_all_uses_with(given)
        backward.graph.erase_node(users[0])
    forward.recompile()
    backward.recompile()


def _missing(value) -> int:
    """The zeros that a matrix's rows need; 0 for matrices that are good, or small."""
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
        self.padded: dict[Node, Node] = {}  # weights and biases

    def pad_columns(self, product: Node) -> None:
        """Gives a product with a transposed weight, with or without a bias, more columns."""
        count, target = _missing(product.meta.get("val")), product.target
        *bias, input, factor = product.args
        weight, is_transposed = _untransposed(factor)
        if not count or product.kwargs or not is_transposed or not _is_matrix(weight):
            return
        columns = product.meta["val"].shape[1]
        given = _given(product)
        if any(each.meta["val"].shape != (columns,) for each in bias) or (given and weight.meta["val"].shape[1] < DEEP):
            return
        copies = [self._copied_result(each) for each in given]

        def choose(node: Node, value: Tensor, _) -> Tensor:
            return value.new_empty_strided(value.shape, (columns + count, 1)) if node is product else value

        nodes = [each for each in self.graph.nodes if each.op == "call_function"]
        changed = with_choice(nodes, choose, ANY_ORDER | OF_MATRICES)
        if changed:
            apply(self.joint, changed)
            operands = [self._with_zeros(each, count) for each in (*bias, weight)]
            operands[-1] = self._called(product, aten.permute.default, operands[-1], [1, 0])
            found = self._called(product, target, *operands[:-1], input, operands[-1])
            self._put(self._called(product, aten.slice.Tensor, found, 1, 0, columns), product)
        else:
            for each in copies:
                each.replace_all_uses_with(each.args[0])
                self.graph.erase_node(each)

    def _copied_result(self, node: Node) -> Node:
        """A copy of what is a result of the graph, in its place there."""
        (output,) = self.graph.find_nodes(op="output")
        copy = self._called(output, aten.clone.default, node, memory_format=torch.contiguous_format)
        output.replace_input_with(node, copy)
        return copy

    def pad_rows(self, node: Node) -> None:
        """Gives what is computed element by element to be multiplied, or summed up over rows, longer rows."""
        count = _missing(node.meta.get("val"))
        early = node.args[0] if node.target is scaled else None
        if not count or (
            early is not None and (DONATED not in early.meta or not _are_sums(early.users.keys() - {node}))
        ):
            return
        matrix, columns = node, node.meta["val"].shape[-1]
        while len(matrix.users) == 1 and (view := next(iter(matrix.users))).target in _RESHAPES:
            matrix = view
        rows, *others = matrix.meta["val"].shape
        if others != [columns]:
            return
        users = list(matrix.users)
        if not all(_takes_longer(each, matrix) for each in users) or _are_sums(users):
            return
        source = early or node
        longer = self._called(source.next, constant_pad, source, [0, count])
        longer.meta[_IN_FORWARD] = True
        if early is not None:
            longer.meta[DONATED] = True
            longer = self._called(node, scaled, longer, node.args[1])
        if longer.meta["val"].dim() != 2:
            longer = self._called(matrix, aten.view.default, longer, [rows, columns + count])
        for user in users:
            self._use(longer, user, count, columns)

    def _use(self, longer: Node, user: Node, count: int, columns: int) -> None:
        """Puts the matrix with longer rows in the place of one that an operator takes."""
        if user.target is _sum:
            found = self._called(user, _sum, longer, *user.args[1:], **user.kwargs)
            self._put(self._called(user, aten.slice.Tensor, found, -1, 0, columns), user)
        elif user.target is _mm:
            weight = self._with_zeros(_untransposed(user.args[1])[0], count)
            weight.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            self._put(self._called(user, _mm, longer, weight), user)
        else:
            for product in list(user.users):
                transposed = self._called(product, aten.permute.default, longer, [1, 0])
                found = self._called(product, _mm, transposed, product.args[1])
                self._put(self._called(product, aten.slice.Tensor, found, 0, 0, columns), product)

    def _with_zeros(self, node: Node, count: int) -> Node:
        """A weight with so many rows more, or a bias with so many elements."""
        if node not in self.padded:
            pads = [*[0] * (2 * node.meta["val"].dim() - 1), count]
            self.padded[node] = self._called(node.next, constant_pad, node, pads)
        return self.padded[node]

    def _called(self, before: Node, target: Callable, *args, **kwargs) -> Node:
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = given_again(node, {})
        return node

    def _put(self, found: Node, node: Node) -> None:
        """Puts it in a node's place, which has the same elements."""
        found.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(found)
        todo = [node]
        while todo:
            each = todo.pop()
            if not each.users and each.op == "call_function":
                todo += [one for one in each.all_input_nodes if one.target in {*VIEWS, *_TRANSPOSED, scaled}]
                self.graph.erase_node(each)


def _are_sums(nodes: Iterable[Node]) -> bool:
    return all(each.target is _sum or (each.target in _RESHAPES and _are_sums(each.users)) for each in nodes)


def _is_matrix(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dim() == 2 and value.is_contiguous()


def _given(node: Node) -> list[Node]:
    """Results of the graph, whose strides are promised, that it or a view of it is."""
    found = [node] if any(each.op == "output" for each in node.users) else []
    return found + [one for each in node.users if each.op != "output" and is_view(each) for one in _given(each)]


def is_view(node: Node) -> bool:
    return getattr(node.target, "is_view", False) or node.target is aten._unsafe_view.default


def _untransposed(node: Node) -> tuple[Node, bool]:
    """What a matrix is, or is the transpose of."""
    is_transposed = False
    while node.target is aten.t.default or (node.target is aten.permute.default and list(node.args[1]) == [1, 0]):
        node, is_transposed = node.args[0], not is_transposed
    return node, is_transposed


def _takes_longer(user: Node, matrix: Node) -> bool:
    """Whether an operator may as well have zeros behind each of the matrix's rows."""
    if user.target is _sum:
        return list(user.args[1]) in ([0], [-2])
    if user.target is _mm:
        weight, is_transposed = _untransposed(user.args[1])
        return user.args[0] is matrix and not is_transposed and _is_matrix(weight)
    others = [each for each in user.users if each.target is not _mm or each.args[0] is not user or each.args[1] is user]
    return _untransposed(user) == (matrix, True) and not others
