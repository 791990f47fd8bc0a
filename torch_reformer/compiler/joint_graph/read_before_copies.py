"""Let attention read queries, keys and values where a projection wrote them, instead of a copy in another order of
memory. torch.nn.MultiheadAttention copies the three parts of its projection so that each is contiguous; the kernels of
GPUs need only adjacent elements of a head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.attention_call import KERNELS
from ..ir.before_copy import in_operand
from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import base_of, given_again
from ..ir.layout import Layout

aten = torch.ops.aten

_ALIGNED = 16  # bytes: the kernels load as many at once


def read_before_copies(module: GraphModule) -> None:
    """Replace queries, keys and values that are views of copies by views of what is copied."""
    for node in module.graph.nodes:
        _, is_backward = KERNELS.get(node.target, (None, True))
        if is_backward:
            continue
        for operand in dict.fromkeys(node.args[:3]):
            if (layout := _layout_before_copy(operand)) is not None:
                _replace(operand, layout)


def _copy_of(operand: Node) -> Node | None:
    """The copy of which a node is a view; None if there is none, or if its source may be written to."""
    copy = base_of(operand)
    is_copy = copy.target is aten.clone.default and base_of(copy.args[0]).op == "call_function"
    return copy if is_copy else None


def _layout_before_copy(operand: Node) -> Layout | None:
    """Where the memory of the copy's source has the operand's elements; None if attention could not read them there."""
    if not isinstance(operand.meta.get("val"), Tensor) or (copy := _copy_of(operand)) is None:
        return None
    source = copy.args[0]
    view, before, after, base = (_layout(node) for node in (operand, source, copy, base_of(source)))
    if not after.is_dense or not base.is_dense or not view.numel:
        return None
    found = in_operand(after, before, view.offset, [[run] for run in zip(view.sizes, view.strides, strict=True)])
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


def _replace(operand: Node, layout: Layout) -> None:
    """Have all calls of attention read a view with this layout, unless that changes a layout of their results."""
    users = [user for user in operand.users if user.target in KERNELS]
    source = base_of(_copy_of(operand).args[0])
    with operand.graph.inserting_before(operand):
        view = operand.graph.call_function(
            aten.as_strided.default, (source, list(layout.sizes), list(layout.strides), layout.offset)
        )
    view.meta["val"] = given_again(view, {})
    if all(_gives_the_same(user, {operand: view.meta["val"]}) for user in users):
        for user in users:
            user.replace_input_with(operand, view)
    else:
        operand.graph.erase_node(view)


def _gives_the_same(node: Node, changed: dict[Node, object]) -> bool:
    """True if the node's results keep their layouts with these operands."""
    pairs = zip(given_again(node, changed), node.meta["val"], strict=True)
    return all(not isinstance(old, Tensor) or layout_of(new) == layout_of(old) for new, old in pairs)
