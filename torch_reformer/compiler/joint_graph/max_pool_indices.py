"""Replace max pooling in training steps on GPUs by kernels that store one byte for each result: the position of the
maximum in its window. PyTorch's kernels store its 64-bit index in the channel map."""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import GraphModule, Node

from ...operators import fake
from ...runtime.dtypes import SUMMED_IN_FP32

aten, reformer = torch.ops.aten, torch.ops.reformer

_MOST_PLACES = 255  # positions in a window
_DEVICES = ("cuda",)  # on CPUs PyTorch's kernels stay
_GEOMETRY = "kernel_size", "stride", "padding", "dilation"
_FORWARD = aten.max_pool2d_with_indices.default
_BACKWARD = aten.max_pool2d_with_indices_backward.default


def replace_max_pool_indices(joint: GraphModule) -> None:
    """Replace the max poolings whose indices are read by their own backwards only."""
    for node in joint.graph.find_nodes(op="call_function", target=_FORWARD):
        arguments = _arguments(node)
        backwards = [user for part in node.users if part.args[1] == 1 for user in part.users]
        if _supports(node, arguments) and all(_is_backward(user, arguments) for user in backwards):
            _replace(joint, node, arguments, backwards)


def _arguments(node: Node) -> dict:
    """All arguments of a max pooling or its backward by name; those of the window as pairs (rows, columns)."""
    schema = node.target._schema.arguments
    passed = dict(zip((argument.name for argument in schema), node.args, strict=False)) | node.kwargs
    values = {argument.name: passed.get(argument.name, argument.default_value) for argument in schema}
    values["stride"] = values["stride"] or values["kernel_size"]
    return {name: _pair(value) if name in _GEOMETRY else value for name, value in values.items()}


def _pair(values) -> tuple[int, int]:
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * 2 if len(values) == 1 else values


def _supports(node: Node, arguments: dict) -> bool:
    images, result = arguments["self"].meta["val"], node.meta["val"][0]
    if images.device.type not in _DEVICES or images.dtype not in SUMMED_IN_FP32 or images.dim() != 4:
        return False
    if not all(isinstance(size, int) for size in images.shape) or images.numel() == 0:
        return False
    if math.prod(arguments["kernel_size"]) > _MOST_PLACES:
        return False
    # The backward infers the memory format of the images from that of the results.
    return fake.result_is_channels_last(images, images) == fake.result_is_channels_last(result, result)


def _is_backward(node: Node, forward: dict) -> bool:
    if node.target is not _BACKWARD:
        return False
    arguments = _arguments(node)
    return all(arguments[name] == forward[name] for name in ("self", *_GEOMETRY))


def _replace(joint: GraphModule, node: Node, arguments: dict, backwards: list[Node]) -> None:
    geometry = [arguments[name] for name in _GEOMETRY]
    with joint.graph.inserting_before(node):
        args = arguments["self"], *geometry, arguments["ceil_mode"]
        pool = _call(joint, node, reformer._max_pool2d.default, args)
        parts = [_call(joint, node, operator.getitem, (pool, i)) for i in range(2)]
    size = tuple(arguments["self"].meta["val"].shape[2:])
    for backward in backwards:
        with joint.graph.inserting_before(backward):
            args = backward.args[0], parts[1], size, *geometry
            backward.replace_all_uses_with(_call(joint, backward, reformer._max_pool2d_grad.default, args))
            joint.graph.erase_node(backward)
    for part in list(node.users):
        part.replace_all_uses_with(parts[part.args[1]])
        joint.graph.erase_node(part)
    joint.graph.erase_node(node)


def _call(joint: GraphModule, old: Node, target, args: tuple) -> Node:
    """A new node with its fake result, and the old node's other metadata."""
    node = joint.graph.call_function(target, args)
    with torch.no_grad():
        value = target(*torch.fx.map_arg(args, lambda arg: arg.meta["val"]))
    node.meta = {**old.meta, "val": value}
    return node
