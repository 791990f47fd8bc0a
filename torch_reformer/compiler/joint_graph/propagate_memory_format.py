"""Choose memory formats where PyTorch leaves them free, so that fewer transposes are needed.

Results of operations whose operands all repeat their elements, such as the gradient of a mean over images, are
contiguous in PyTorch, and so is all that follows; next to images in channels_last they become channels_last. So do
gradients of slices, which PyTorch writes into zeros, and copies of repeated parts of images, as in the gradient of a
sum over parts of their channels. Results of operands with different strides get those of the first
operand in PyTorch; if another operand is contiguous, they become contiguous. PyTorch's group norm for GPUs first copies
images in channels_last to contiguous ones; they stay channels_last, and so does what follows, unless that means more
transposes. What replaces a slice of a slice has that slice's strides in PyTorch, and is stored without gaps here."""

from __future__ import annotations

import functools
import heapq
import operator
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch._prims_common import are_strides_like_channels_last_or_false
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from ..ir.fx_utils import (
    CONSTANTS,
    REDUCTIONS,
    UPSAMPLINGS,
    given_again,
    gradient_of,
    in_order,
    in_order_of_operand,
    is_element_wise,
    is_result,
)
from ..ir.layout import Layout

aten, reformer = torch.ops.aten, torch.ops.reformer
Choice = Callable[[Node, Tensor, dict[Node, object]], Tensor]
# Operators that, besides element-wise ones, give the same elements whatever the strides of their operands. Others may
# have been chosen by these strides, as attention kernels are.
ANY_ORDER = {
    *REDUCTIONS,
    *(aten.convolution.default, aten.convolution_backward.default, aten._to_copy.default),
    *(aten.clone.default, aten.copy.default, aten.view.default, aten.reshape.default, aten.permute.default),
    *(aten.expand.default, aten.squeeze.dims, aten.unsqueeze.default, aten.slice.Tensor, aten.select.int),
    *(aten.new_empty_strided.default, aten.slice_scatter.default, aten.alias.default, aten.detach.default, *CONSTANTS),
    *(reformer._max_pool2d.default, reformer._max_pool2d_grad.default),
    *(aten.avg_pool2d.default, aten.avg_pool2d_backward.default, aten.constant_pad_nd.default, aten.cat.default),
    *(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default),
    *(upsampling.default for upsampling in UPSAMPLINGS),
    *(gradient_of(upsampling) for upsampling in UPSAMPLINGS),
}
# Matrix products, whose results have the same strides whatever those of their operands, and operators between them.
OF_MATRICES = {
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten._unsafe_view.default, aten.t.default),
    *(aten.transpose.int, aten.squeeze.dim, aten.split_with_sizes.default),
}
_CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}
_KEEP_GAPS = {aten.slice_scatter.default, aten.copy.default}
_NEXT = 32  # element-wise operations that are looked at


def propagate_memory_format(module: GraphModule, both_passes: bool = False) -> None:
    """Change strides of the graph's fake values where that is possible. Results of the graph keep theirs.

    Args:
        both_passes: the graph is a forward with its backward, each of which may have to copy the images.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    for node in nodes:
        if node.target in _KEEP_GAPS and not is_result(node):
            apply(module, with_choice([node], _without_gaps, ANY_ORDER))
    for node in nodes:
        if _makes_contiguous(node):
            changed = _with_channels_last({node})
            if casts := _casts_for(changed):
                changed = _with_channels_last({node, *casts})
            before, after = (_transposed_bytes(module, changed, as_before) for as_before in (True, False))
            if changed and (after < before or (both_passes and after == before)):
                apply(module, changed)
                node.kwargs = {}
    free = [node for node in nodes if _is_free(node)]
    images = {node for node in free if any(map(_is_only_channels_last, partners(node, {})))}
    images |= {node for node in nodes if _repeats_parts(node) and any(map(_is_only_channels_last, _partners_of(node)))}
    zeros = {node for node in free if _gets_channels_last(node)}

    def for_images(images: set[Node], node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return _in_channels_last(node, value) if node in images else value

    def for_rows(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return value.contiguous() if _is_better_contiguous(node, value, changed) else value

    changes = [with_choice(each, functools.partial(for_images, each), ANY_ORDER) for each in (images | zeros, images)]
    apply(module, changes[0] or changes[1])
    apply(module, with_choice(nodes, for_rows, ANY_ORDER | OF_MATRICES))


def with_choice(first: Iterable[Node], choose: Choice, any_order: set) -> dict[Node, object]:
    """As changes_by; empty, too, if an operator can't take the change."""
    try:
        return changes_by(first, choose, any_order)
    except (RuntimeError, ValueError):
        return {}


def changes_by(first: Iterable[Node], choose: Choice, any_order: set) -> dict[Node, object]:
    """Values of the nodes whose strides change if `choose` has its way. Only nodes that may change are looked at.

    Args:
        first: calls for whose values `choose` may choose other strides even if no operand has changed.
        choose: gives a node's value the strides that it should have.
        any_order: the operators, besides element-wise ones, whose operands may change.

    Raises:
        RuntimeError, ValueError: an operator can't take the change, such as a view that these strides don't allow.
    """
    changed: dict[Node, object] = {}
    seen = set(first)
    todo = sorted(seen)  # in the graph's order
    while todo:
        node = heapq.heappop(todo)
        if (value := _changed(node, changed, choose, any_order)) is not None:
            changed[node] = value
            for user in node.users:
                if user not in seen and user.op == "call_function":
                    seen.add(user)
                    heapq.heappush(todo, user)
    return changed


def _without_gaps(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
    """The choice that a slice's replacement is dense, in its order of memory."""
    if node.target not in _KEEP_GAPS or not all(isinstance(number, int) for number in (*value.shape, *value.stride())):
        return value
    layout = Layout(tuple(value.shape), value.stride())
    if not layout.numel or layout.is_dense or layout.elements < layout.numel:
        return value
    return value.new_empty_strided(value.shape, layout.packed.strides)


def _with_channels_last(copies: set[Node]) -> dict[Node, object]:
    """Changes if these copies are in channels_last."""
    return with_choice(copies, functools.partial(_keep_channels_last, copies), ANY_ORDER | OF_MATRICES)


def _makes_contiguous(node: Node) -> bool:
    """True for a copy that does nothing but make images in channels_last contiguous."""
    if node.target is not aten.clone.default or node.kwargs.get("memory_format") != torch.contiguous_format:
        return False
    (images,) = _tensors(node)
    has_static_sizes = all(isinstance(size, int) for size in images.shape)
    return images.dim() == 4 and has_static_sizes and _is_only_channels_last(images)


def _casts_for(changed: dict[Node, object]) -> set[Node]:
    """Casts of images that are read only beside images which are in channels_last now. They follow, so that they are
    transposed as they are read, while they are narrow."""

    def is_channels_last_now(node: Node) -> bool:
        return (
            isinstance(changed.get(node), Tensor) and changed[node].dim() == 4 and _is_only_channels_last(changed[node])
        )

    operands = {input for node in changed for input in node.all_input_nodes if input not in changed}
    casts = [node for node in operands if node.target is aten._to_copy.default and node.meta["val"].dim() == 4]
    return {cast for cast in casts if all(map(is_channels_last_now, cast.users))}


def _keep_channels_last(copies: set[Node], node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
    """The choice that these copies are in channels_last, and so is what element-wise operators compute from them."""
    if node in copies:
        return value.contiguous(memory_format=torch.channels_last)
    if value.dim() != 4 or not is_element_wise(node) or not any(input in changed for input in node.all_input_nodes):
        return value
    operands = [changed.get(input, input.meta.get("val")) for input in node.all_input_nodes]
    if any(
        isinstance(each, Tensor) and each.shape == value.shape and _is_only_channels_last(each) for each in operands
    ):
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _transposed_bytes(module: GraphModule, changed: dict[Node, object], as_before: bool) -> int:
    """Bytes of images that an operator reads, or the graph returns, in another memory format than it computes in, among
    the changed nodes and their users. as_before: without the changes."""

    def value(node: Node):
        values = node.meta.get("val")
        values = values if as_before else changed.get(node, values)
        return next((each for each in tree_leaves(values) if isinstance(each, Tensor)), None)

    (output,) = module.graph.find_nodes(op="output")
    transposed: set[tuple[Node, bool]] = set()  # images, and True if they are needed in channels_last
    for node in {user: None for each in changed for user in (each, *each.users)}:
        if is_element_wise(node) or node.target in _CONVOLUTIONS or node.target is aten.copy.default:
            result = value(node)
            for input in node.all_input_nodes:
                if input.target not in CONSTANTS and _have_different_formats(value(input), result):
                    transposed.add((input, _is_only_channels_last(result)))
    returned = set(output.all_input_nodes)
    for node in changed:
        if node in returned and _have_different_formats(value(node), node.meta["val"]):
            transposed.add((node, not _is_only_channels_last(value(node))))
    return sum(value(node).nbytes for node, _ in transposed)


def _have_different_formats(one: Tensor | None, other: Tensor | None) -> bool:
    """True if one is in channels_last and the other is contiguous."""
    if one is None or other is None or one.dim() != 4 or other.dim() != 4:
        return False
    return any(_is_only_channels_last(a) and _is_only_contiguous(b) for a, b in ((one, other), (other, one)))


def _is_only_contiguous(images: Tensor) -> bool:
    """True if the images are contiguous and not in channels_last, too (as those of one channel are)."""
    return images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last)


class _HasAnOrder(RuntimeError):
    """An operator may have been chosen by the strides of its operands."""


def _changed(node: Node, changed: dict[Node, object], choose: Choice, any_order: set):
    """The node's value with its new strides, or None if they stay."""
    before = node.meta.get("val")
    if any(input in changed for input in node.all_input_nodes):
        if not (node.target is operator.getitem or node.target in any_order or is_element_wise(node)):
            raise _HasAnOrder
        value = given_again(node, changed)
        if node.target in REDUCTIONS and isinstance(value, Tensor):
            value = in_order_of_operand(node, value, changed)
    else:
        value = before
    if isinstance(value, Tensor):
        value = choose(node, value, changed)
        return value if value.stride() != before.stride() else None
    return None if value is before else value


def apply(module: GraphModule, changed: dict[Node, object]) -> None:
    """Put the changed values into the graph's nodes. Copy changed results of the graph back to their old strides."""
    (output,) = module.graph.find_nodes(op="output")
    for node, value in changed.items():
        before, node.meta["val"] = node.meta["val"], value
        if node in output.all_input_nodes and before.stride() != value.stride():
            output.replace_input_with(node, in_order(module, node, before.stride()))


def _is_better_contiguous(node: Node, value: Tensor, changed: dict[Node, object]) -> bool:
    """True for an element-wise operation whose result is not contiguous (and no batch of images), while one of its
    operands is, or another operand of an element-wise operation that reads it."""
    if not is_element_wise(node) or value.dim() == 4 or value.is_contiguous():
        return False
    operands = [changed.get(input, input.meta.get("val")) for input in node.all_input_nodes]
    operands = [each for each in operands if isinstance(each, Tensor) and each.shape == value.shape]
    return any(each.is_contiguous() for each in (*operands, *partners(node, changed)))


def _tensors(node: Node) -> list[Tensor]:
    return [input.meta["val"] for input in node.all_input_nodes if isinstance(input.meta.get("val"), Tensor)]


def _is_free(node: Node) -> bool:
    """True if no operand suggests a memory format for these images: they are constant, or an element-wise operation's
    result of operands that all repeat their elements."""
    value, operands = node.meta.get("val"), _tensors(node)
    if not isinstance(value, Tensor) or value.dim() != 4 or value.is_contiguous(memory_format=torch.channels_last):
        return False
    if node.target in CONSTANTS:
        return True
    if not is_element_wise(node) or not operands:
        return False
    return all([0 in operand.stride() or operand.numel() < value.numel() for operand in operands])


def _repeats_parts(node: Node) -> bool:
    """True for a copy of repeated elements that is only read as contiguous images."""
    if node.target is not aten.clone.default or 0 not in _tensors(node)[0].stride():
        return False
    value, users = node.meta["val"], list(node.users)
    is_viewed = len(users) == 1 and users[0].target is aten.view.default and users[0].meta["val"].dim() == 4
    if not is_viewed or value.dim() == 4 or not _is_only_contiguous(users[0].meta["val"]):
        return False
    try:
        _in_channels_last(node, value)
    except RuntimeError:  # the images are no view of what is copied then
        return False
    return True


def _partners_of(copy: Node) -> list[Tensor]:
    """The partners of the images as which a copy is read."""
    (view,) = copy.users
    return partners(view, {})


def _in_channels_last(node: Node, value: Tensor) -> Tensor:
    """The value with the strides by which it, or the only view of it, is images in channels_last."""
    if value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    (view,) = node.users
    return view.meta["val"].contiguous(memory_format=torch.channels_last).view(value.shape)


def _gets_channels_last(node: Node) -> bool:
    """True for zeros into which a slice of images in channels_last is written, as in the gradient of a slice."""
    scatters = [user for user in node.users if user.target is aten.slice_scatter.default and user.args[0] is node]
    sources = [user.args[1].meta["val"] for user in scatters]
    return any(
        source.dim() == 4
        and not source.is_contiguous()
        and are_strides_like_channels_last_or_false(source.shape, source.stride())
        for source in sources
    )


def partners(node: Node, changed: dict[Node, object]) -> list[Tensor]:
    """Tensors of the node's shape that element-wise operations read together with it, or with a result that they or
    others have computed from it."""
    partners, todo, seen = [], [node], {node}
    while todo and len(seen) < _NEXT:
        for user in todo.pop().users:
            if user not in seen and is_element_wise(user):
                seen.add(user)
                todo.append(user)
                inputs = [input for input in user.all_input_nodes if input not in seen]
                partners += [changed.get(input, input.meta.get("val")) for input in inputs]
    return [each for each in partners if isinstance(each, Tensor) and each.shape == node.meta["val"].shape]


def _is_only_channels_last(tensor: Tensor) -> bool:
    """True if the tensor is in channels_last and not contiguous, too (as images of one channel are)."""
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
