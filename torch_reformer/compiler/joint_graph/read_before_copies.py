"""Let attention read queries, keys and values where a projection wrote them, instead of a copy in another order of
memory. torch.nn.MultiheadAttention copies the three parts of its projection so that each is contiguous; the kernels of
GPUs need only adjacent elements of a head.

A copy is left out if attention alone reads it, and all of its operands can be read before the copy. The memory that
attention keeps for the backward is then that of the copy's source. So this must not be a result, which the user may
write to, an input, or much larger than the copy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.attention_call import KERNELS
from ..ir.before_copy import in_operand
from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import base_of, given_again, is_result, is_view
from ..ir.layout import Layout

aten = torch.ops.aten

_ALIGNED = 16  # bytes: the kernels load as many at once
_MOST_KEPT = 2  # times the bytes of the copy


def read_before_copies(module: GraphModule) -> None:
    """Replace views of copies, where attention reads these, by views of what is copied."""
    for copy in module.graph.find_nodes(op="call_function", target=aten.clone.default):
        operands = _operands(copy)
        if operands and _can_keep(base_of(copy.args[0]), copy):
            layouts = {operand: _layout_before(copy, operand) for operand in operands}
            if None not in layouts.values():
                _replace(base_of(copy.args[0]), layouts)


def _operands(copy: Node) -> list[Node]:
    """Views of the copy that are queries, keys and values; none if anything else reads the copy."""
    found: dict[Node, None] = {}
    todo = [copy]
    while todo:
        node = todo.pop()
        for user in node.users:
            if _reads_as_rows(user, node):
                found[node] = None
            elif is_view(user):
                todo.append(user)
            else:
                return []
    return list(found)


def _reads_as_rows(user: Node, operand: Node) -> bool:
    """True for a call of attention of which the operand is queries, keys or values alone. A gradient whose layout is
    not the result's would be copied within the call."""
    if user.target not in KERNELS:
        return False
    _, is_backward = KERNELS[user.target]
    first = int(is_backward)  # behind the result's gradient
    others = (*user.args[:first], *user.args[first + 3 :], *user.kwargs.values())
    return operand in user.args[first : first + 3] and operand not in others


def _can_keep(base: Node, copy: Node) -> bool:
    """True if a copy's readers may read the memory of this node instead, also in the backward."""
    if base.op != "call_function" or not isinstance(base.meta.get("val"), Tensor) or is_result(base):
        return False
    memory, value = base.meta["val"], copy.meta["val"]
    is_large = memory.numel() > _MOST_KEPT * value.numel()
    return memory.dtype == value.dtype and _layout(base).is_dense and _layout(copy).is_dense and not is_large


def _layout_before(copy: Node, operand: Node) -> Layout | None:
    """Where the memory of the copy's source has the operand's elements; None if attention could not read them there."""
    view, source = _layout(operand), _layout(copy.args[0])
    is_same = operand.meta["val"].dtype == copy.meta["val"].dtype == copy.args[0].meta["val"].dtype
    if not is_same or not view.numel:
        return None
    axes = [[run] for run in zip(view.sizes, view.strides, strict=True)]
    found = in_operand(_layout(copy), source, view.offset, axes)
    if found is None or any(len(axis) > 1 for axis in found[1]):
        return None
    strides = tuple(axis[0][1] if axis else own for axis, own in zip(found[1], view.strides, strict=True))
    steps = [stride for size, stride in zip(view.sizes[:-1], strides, strict=False) if size > 1]
    itemsize = copy.meta["val"].dtype.itemsize
    is_aligned = not any(number * itemsize % _ALIGNED for number in (*steps, found[0]))
    # Kernels need not take repeated heads.
    return Layout(view.sizes, strides, found[0]) if is_aligned and all(steps) and strides[-1] == 1 else None


def _layout(node: Node) -> Layout:
    return layout_of(node.meta["val"], node.meta["val"].storage_offset())


def _replace(base: Node, layouts: dict[Node, Layout]) -> None:
    """Have all calls of attention read views of the base in the place of these operands, unless that changes a layout
    of their results."""
    views: dict[Node, Node] = {}
    for operand, layout in layouts.items():
        with operand.graph.inserting_before(operand):
            arguments = base, list(layout.sizes), list(layout.strides), layout.offset
            views[operand] = operand.graph.call_function(aten.as_strided.default, arguments)
        views[operand].meta["val"] = given_again(views[operand], {})
    users = dict.fromkeys(user for operand in layouts for user in operand.users if user.target in KERNELS)
    changed = {operand: view.meta["val"] for operand, view in views.items()}
    is_same = all(_gives_the_same(user, changed) for user in users)
    for operand, view in views.items():
        for user in [user for user in users if is_same and operand in user.all_input_nodes]:
            user.replace_input_with(operand, view)
        if not is_same:
            operand.graph.erase_node(view)


def _gives_the_same(node: Node, changed: dict[Node, object]) -> bool:
    """True if the node's results keep their layouts with these operands."""
    pairs = zip(given_again(node, changed), node.meta["val"], strict=True)
    return all(not isinstance(old, Tensor) or layout_of(new) == layout_of(old) for new, old in pairs)
