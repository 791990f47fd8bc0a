"""Max pooling of training steps on GPUs by kernels that store for each result a byte, the place of the maximum in its
window: PyTorch's store its index among the image's elements in 64 bits."""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import GraphModule, Node

from ...operators import fake
from ...runtime.dtypes import SUMMED_IN_FP32

aten, reformer = torch.ops.aten, torch.ops.reformer

_MOST_PLACES = 255  # of a window
_DEVICES = ("cuda",)  # on CPUs PyTorch's kernels stay
_GEOMETRY = "kernel_size", "stride", "padding", "dilation"
_FORWARD = aten.max_pool2d_with_indices.default
_BACKWARD = aten.max_pool2d_with_indices_backward.default


def replace_max_pool_indices(joint: GraphModule) -> None:
    """Changes those whose indices nothing but their own backwards reads."""
    for node in joint.graph.find_nodes(op="call_function", target=_FORWARD):
        given = _arguments(node)
        backwards = [user for part in node.users if part.args[1] == 1 for user in part.users]
        if _supports(node, given) and all(_is_backward(each, given) for each in backwards):
            _replace(joint, node, given, backwards)
    joint.recompile()


def _arguments(node: Node) -> dict:
    """All of them, by name; those of a window's rows and columns as pairs."""
    schema = node.target._schema.arguments
    given = dict(zip((each.name for each in schema), node.args, strict=False)) | node.kwargs
    given = {each.name: given.get(each.name, each.default_value) for each in schema}
    given["stride"] = given["stride"] or given["kernel_size"]
    return {name: _pair(value) if name in _GEOMETRY else value for name, value in given.items()}


def _pair(values) -> tuple[int, int]:
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * 2 if len(values) == 1 else values


def _supports(node: Node, given: dict) -> bool:
    images, result = given["self"].meta["val"], node.meta["val"][0]
    if images.device.type not in _DEVICES or images.dtype not in SUMMED_IN_FP32 or images.dim() != 4:
        return False
    if not all(isinstance(each, int) for each in images.shape) or images.numel() == 0:
        return False
    if math.prod(given["kernel_size"]) > _MOST_PLACES:
        return False
    # The results' order of memory tells the backward that of the images.
    return fake.result_is_channels_last(images, images) == fake.result_is_channels_last(result, result)


def _is_backward(node: Node, forward: dict) -> bool:
    if node.target is not _BACKWARD:
        return False
    given = _arguments(node)
    return all(given[name] == forward[name] for name in ("self", *_GEOMETRY))


def _replace(joint: GraphModule, node: Node, given: dict, backwards: list[Node]) -> None:
    geometry = [given[name] for name in _GEOMETRY]
    with joint.graph.inserting_before(node):
        args = given["self"], *geometry, given["ceil_mode"]
        pool = _call(joint, node, reformer._max_pool2d.default, args)
        parts = [_call(joint, node, operator.getitem, (pool, i)) for i in range(2)]
    size = tuple(given["self"].meta["val"].shape[2:])
    for each in backwards:
        with joint.graph.inserting_before(each):
            args = each.args[0], parts[1], size, *geometry
            each.replace_all_uses_with(_call(joint, each, reformer._max_pool2d_grad.default, args))
            joint.graph.erase_node(each)
    for each in list(node.users):
        each.replace_all_uses_with(parts[each.args[1]])
        joint.graph.erase_node(each)
    joint.graph.erase_node(node)


def _call(joint: GraphModule, old: Node, target, args: tuple) -> Node:
    """A node in the place of this one, with its fake result."""
    node = joint.graph.call_function(target, args)
    with torch.no_grad():
        value = target(*torch.fx.map_arg(args, lambda each: each.meta["val"]))
    node.meta = {**old.meta, "val": value}
    return node
