"""Orders of memory that nobody asked for, and that would cost transpositions. What is computed of repeated elements
alone, as the gradient of a mean over images, gets its dimensions' own order, and gives it to all that follows: next to
images in channels_last it gets theirs. What is computed of tensors in different orders gets the first one's: if one is
in the dimensions' own order, it gets that. PyTorch's group norm for GPUs copies images to their dimensions' own order
first: they keep theirs, and what follows with them, where no more is transposed then."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from ..ir.fx_utils import CONSTANTS, given_again, in_order, is_element_wise

aten, reformer = torch.ops.aten, torch.ops.reformer
Choice = Callable[[Node, Tensor, dict[Node, object]], Tensor]
# Besides element-wise operators, what gives the same elements whatever the order of memory. Others may have been chosen
# by it, as kernels of attention are.
ANY_ORDER = {
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default),
    *(aten.var_mean.correction, aten.convolution.default, aten.convolution_backward.default, aten._to_copy.default),
    *(aten.clone.default, aten.copy.default, aten.view.default, aten.reshape.default, aten.permute.default),
    *(aten.expand.default, aten.squeeze.dims, aten.unsqueeze.default, aten.slice.Tensor, aten.select.int),
    *(aten.new_empty_strided.default, *CONSTANTS),
    *(reformer._max_pool2d.default, reformer._max_pool2d_grad.default),
}
# Between matrices, whose results have one order whatever their operands' is.
OF_MATRICES = {
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten._unsafe_view.default, aten.t.default),
    *(aten.transpose.int, aten.detach.default, aten.squeeze.dim, aten.split_with_sizes.default),
}
_CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
_NEXT = 32  # element-wise operations that are looked at


def propagate_memory_format(module: GraphModule, both_passes: bool = False) -> None:
    """Changes the fake results in the graph where that can be. Results of the graph stay as they are. both_passes:
    whether it is a forward with its backward, in which copies of images may be made in each of both."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    for node in nodes:
        if _transposes_images(node):
            changed = with_choice(nodes, functools.partial(_not_transposed, {node}), ANY_ORDER | OF_MATRICES)
            if casts := _casts_for(changed, nodes):
                changed = with_choice(
                    nodes, functools.partial(_not_transposed, {node, *casts}), ANY_ORDER | OF_MATRICES
                )
            before, now = (_transposed_bytes(module, changed, each) for each in (True, False))
            if changed and (now < before or (both_passes and now == before)):
                apply(module, changed)
                node.kwargs = {}
    images = {node for node in nodes if _is_open(node) and any(map(_is_of_images, _partners(node, {})))}

    def for_images(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return value.contiguous(memory_format=torch.channels_last) if node in images else value

    def for_rows(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return value.contiguous() if _is_between_orders(node, value, changed) else value

    apply(module, with_choice(nodes, for_images, ANY_ORDER))
    apply(module, with_choice(nodes, for_rows, ANY_ORDER | OF_MATRICES))


def with_choice(nodes: list[Node], choose: Choice, any_order: set) -> dict[Node, object]:
    """What operators give in another order than before by a choice; nothing if that can't be."""
    changed: dict[Node, object] = {}
    try:
        for node in nodes:
            if (found := _changed(node, changed, choose, any_order)) is not None:
                changed[node] = found
    except (RuntimeError, ValueError):  # an operator that looks at memory in another way can't look at this one
        return {}
    return changed


def _transposes_images(node: Node) -> bool:
    """Whether it is nothing but a copy of images to their dimensions' own order."""
    if node.target is not aten.clone.default or node.kwargs.get("memory_format") != torch.contiguous_format:
        return False
    (images,) = _tensors(node)
    return images.dim() == 4 and all(isinstance(each, int) for each in images.shape) and _is_of_images(images)


def _casts_for(changed: dict[Node, object], nodes: list[Node]) -> set[Node]:
    """Casts of images that are only read beside what is in channels_last now: they are transposed as they are read, when
    they are narrow."""

    def is_beside(node: Node) -> bool:
        return isinstance(changed.get(node), Tensor) and changed[node].dim() == 4 and _is_of_images(changed[node])

    casts = [each for each in nodes if each.target is aten._to_copy.default and each not in changed]
    return {each for each in casts if each.meta["val"].dim() == 4 and each.users and all(map(is_beside, each.users))}


def _not_transposed(copies: set[Node], node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
    """The choice that these copies, and what element-wise operators give for them, are in channels_last."""
    if node in copies:
        return value.contiguous(memory_format=torch.channels_last)
    if value.dim() != 4 or not is_element_wise(node) or not any(each in changed for each in node.all_input_nodes):
        return value
    given = [changed.get(each, each.meta.get("val")) for each in node.all_input_nodes]
    if any(isinstance(each, Tensor) and each.shape == value.shape and _is_of_images(each) for each in given):
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _transposed_bytes(module: GraphModule, changed: dict[Node, object], as_before: bool) -> int:
    """Bytes of images that are read, or given, in another order than what is computed of them has, by the operators
    that give or read what is changed."""

    def value(node: Node):
        found = node.meta.get("val")
        found = found if as_before else changed.get(node, found)
        return next((each for each in tree_leaves(found) if isinstance(each, Tensor)), None)

    (output,) = module.graph.find_nodes(op="output")
    transposed: set[tuple[Node, bool]] = set()  # with the order that it is needed in
    for node in {user: None for each in changed for user in (each, *each.users)}:
        if is_element_wise(node) or node.target in _CONVOLUTIONS or node.target is aten.copy.default:
            result = value(node)
            for each in node.all_input_nodes:
                if each.target not in CONSTANTS and _are_apart(value(each), result):
                    transposed.add((each, _is_of_images(result)))
    for each in changed:
        if each in output.all_input_nodes and _are_apart(value(each), each.meta["val"]):
            transposed.add((each, not _is_of_images(value(each))))
    return sum(value(each).nbytes for each, _ in transposed)


def _are_apart(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether one is in channels_last and the other in its dimensions' own order."""
    if one is None or other is None or one.dim() != 4 or other.dim() != 4:
        return False
    return any(_is_of_images(a) and _is_in_own_order(b) for a, b in ((one, other), (other, one)))


def _is_in_own_order(images: Tensor) -> bool:
    """Whether only the dimensions' own order describes its order of memory."""
    return images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last)


class _HasAnOrder(RuntimeError):
    """An operator may have been chosen by its operands' order of memory."""


def _changed(node: Node, changed: dict[Node, object], choose: Choice, any_order: set):
    """What it gives in another order than before, or None."""
    before = node.meta.get("val")
    if any(each in changed for each in node.all_input_nodes):
        if not (node.target is operator.getitem or node.target in any_order or is_element_wise(node)):
            raise _HasAnOrder
        found = given_again(node, changed)
    else:
        found = before
    if isinstance(found, Tensor):
        found = choose(node, found, changed)
        return found if found.stride() != before.stride() else None
    return None if found is before else found


def apply(module: GraphModule, changed: dict[Node, object]) -> None:
    (output,) = module.graph.find_nodes(op="output")
    for node, value in changed.items():
        node.meta["val"], value = value, node.meta["val"]
        if node in output.all_input_nodes and value.stride() != node.meta["val"].stride():
            _restore(module, output, node, value)


def _is_between_orders(node: Node, value: Tensor, changed: dict[Node, object]) -> bool:
    """Whether it is an element-wise operation that gives another order than its dimensions' own, which one of its
    operands has, or another operand of what needs it."""
    if not is_element_wise(node) or value.dim() == 4 or value.is_contiguous():
        return False
    given = [changed.get(each, each.meta.get("val")) for each in node.all_input_nodes]
    given = [each for each in given if isinstance(each, Tensor) and each.shape == value.shape]
    return any(each.is_contiguous() for each in (*given, *_partners(node, changed)))


def _tensors(node: Node) -> list[Tensor]:
    return [each.meta["val"] for each in node.all_input_nodes if isinstance(each.meta.get("val"), Tensor)]


def _is_open(node: Node) -> bool:
    """Whether it is an element-wise operation on images of which each operand repeats its elements, or gives images of
    one number."""
    value, inputs = node.meta.get("val"), _tensors(node)
    if not isinstance(value, Tensor) or value.dim() != 4 or value.is_contiguous(memory_format=torch.channels_last):
        return False
    if node.target in CONSTANTS:
        return True
    if not is_element_wise(node) or not inputs:
        return False
    repeated = [0 in each.stride() or each.numel() < value.numel() for each in inputs]
    return all(repeated)


def _partners(node: Node, changed: dict[Node, object]) -> list[Tensor]:
    """What the next element-wise operations that need it take besides, or give to others that do."""
    found, todo, seen = [], [node], {node}
    while todo and len(seen) < _NEXT:
        for user in todo.pop().users:
            if user not in seen and is_element_wise(user):
                seen.add(user)
                todo.append(user)
                found += [changed.get(each, each.meta.get("val")) for each in user.all_input_nodes if each not in seen]
    return [each for each in found if isinstance(each, Tensor) and each.shape == node.meta["val"].shape]


def _is_of_images(tensor: Tensor) -> bool:
    """Whether only channels_last describes its order of memory."""
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _restore(module: GraphModule, output: Node, node: Node, before: Tensor) -> None:
    """Gives the graph's result in the order that it had."""
    output.replace_input_with(node, in_order(module, node, before.stride()))
    module.recompile()
