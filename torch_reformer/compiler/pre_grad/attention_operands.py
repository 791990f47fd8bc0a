"""Give attention the operands that PyTorch's fused kernels support, in place.

PyTorch has fused kernels for queries of four dimensions only: (batch, heads, rows, columns). Attention within windows
often has more, and single heads have fewer; PyTorch would then compute full matrices of scores, in fp32. And the fused
kernels read rows wherever they lie, so contiguous copies of their operands are not needed.

The result of attention is copied to the strides that it had. That copy and the one that follows from a model's reshape
are one operation, or none (joint_graph/copy_sources.py)."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

from ...runtime.dtypes import NARROW
from .attention_calls import attention_calls, is_static
from .writes import is_unwritten

_OPERANDS = "query", "key", "value"
_ALIGNED = 16  # bytes that the kernels read at once
_MOST = 65535  # batch elements or heads, each of which is a dimension of a launch


def simplify_operands(module: GraphModule) -> None:
    """Change Dynamo's graph: attention reads the sources of contiguous copies that nothing else reads, and 16-bit
    operands get four dimensions."""
    is_changed = False
    for node, arguments in attention_calls(module.graph).items():
        if not all(is_static(arguments.get(name)) for name in _OPERANDS) or not is_static(node):
            continue
        if not node.meta["example_value"].is_contiguous():
            continue
        sources = _sources(node, arguments)
        orders = _orders(node, arguments | sources)
        if not sources and orders is None:
            continue
        with module.graph.inserting_before(node):
            new = _add(module.graph, node, arguments | sources, orders)
        node.replace_all_uses_with(new)
        for unused in (node, *(arguments[name] for name in sources)):
            module.graph.erase_node(unused)
        is_changed = True
    if is_changed:
        module.recompile()


def _sources(call: Node, arguments: dict[str, Any]) -> dict[str, Node]:
    """Sources of contiguous copies, by the names of the operands that are such copies and need not be."""
    found = {}
    for name in _OPERANDS:
        copy = arguments[name]
        if not _is_contiguous(copy) or set(copy.users) != {call} or not _is_read_in_place(copy.args[0]):
            continue
        if is_unwritten(copy, copy.args[0]):
            found[name] = copy.args[0]
    return found


def _is_contiguous(node: Node) -> bool:
    """True for a contiguous copy."""
    return node.op == "call_method" and node.target == "contiguous" and len(node.args) == 1 and not node.kwargs


def _is_read_in_place(node: Node) -> bool:
    """True if rows of the tensor are adjacent elements that begin at multiples of 16 bytes."""
    if not is_static(node):
        return False
    fake = node.meta["example_value"]
    *strides, last = fake.stride() or (0,)
    bytes = [number * fake.element_size() for number in (*strides, fake.storage_offset())]
    repeats = any(size > 1 and stride == 0 for size, stride in zip(fake.shape, fake.stride(), strict=True))
    return last == 1 and not repeats and not any(number % _ALIGNED for number in bytes)


def _orders(call: Node, arguments: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    """The operands' leading dimensions that become batch elements, and those that become heads, each in the order of
    memory: these are within the rows of all heads. None if the call stays as it is."""
    shapes = [arguments[name].meta["example_value"].shape for name in _OPERANDS]
    strides = arguments["key"].meta["example_value"].stride()  # queries are pooled in some models, and contiguous then
    *leading, _, _ = shapes[0] if len(shapes[0]) > 2 else (0, 0)
    if len(leading) in (0, 2) or any(list(shape[:-2]) != leading for shape in shapes):
        return None
    has_options = arguments.get("attn_mask") is not None or arguments.get("dropout_p") or arguments.get("enable_gqa")
    if has_options or call.meta["example_value"].dtype not in NARROW:
        return None
    dims = sorted(range(len(leading)), key=lambda d: (leading[d] > 1, -strides[d]))
    batch = [d for d in dims if leading[d] == 1 or strides[d] > strides[-2]]
    heads = [d for d in dims if d not in batch] or [batch.pop()]
    if any(math.prod(leading[d] for d in order) > _MOST for order in (batch, heads)):
        return None
    return batch, heads


def _add(graph: Graph, call: Node, arguments: dict[str, Any], orders: tuple[list[int], list[int]] | None) -> Node:
    """Add the call with these arguments, and what gives its result the call's sizes and strides."""
    if orders is None:
        result = graph.call_function(F.scaled_dot_product_attention, (), arguments)
        return _contiguous(graph, call, result)
    batch, heads = orders
    rows = len(batch) + len(heads)
    order = [*batch, rows, *heads, rows + 1]
    operands = {}
    for name in _OPERANDS:
        shape = arguments[name].meta["example_value"].shape
        sizes = [math.prod(shape[d] for d in dims) for dims in (batch, [rows], heads, [rows + 1])]
        permuted = graph.call_method("permute", (arguments[name], order))
        operands[name] = graph.call_method("transpose", (graph.call_method("reshape", (permuted, sizes)), 1, 2))
    result = graph.call_function(F.scaled_dot_product_attention, (), arguments | operands)
    shape = call.meta["example_value"].shape
    split = graph.call_method("reshape", (graph.call_method("transpose", (result, 1, 2)), [shape[d] for d in order]))
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return _contiguous(graph, call, graph.call_method("permute", (split, inverse)))


def _contiguous(graph: Graph, call: Node, result: Node) -> Node:
    copy = graph.call_method("contiguous", (result,))
    copy.meta["example_value"] = call.meta["example_value"]
    return copy
