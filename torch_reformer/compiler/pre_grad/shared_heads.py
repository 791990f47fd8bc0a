"""Give attention the keys and values that several heads of queries share once, where a model repeats them, or leaves
that to broadcasting, for which PyTorch has no fused kernels.

Kernels that support `enable_gqa` read them where they are, and sum their gradients. The choice of a kernel
(decompositions/attention.py) repeats them again if no such kernel takes the call."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .attention_calls import attention_calls, is_static
from .writes import is_unwritten

_RESHAPES = {"reshape", "flatten", torch.reshape, torch.flatten}
_REPEATS = {"repeat_interleave", torch.repeat_interleave}


def share_heads(module: GraphModule) -> None:
    """Change Dynamo's graph: calls of attention on NVIDIA's GPUs whose keys and values are repeated for adjacent heads,
    or have one head for all, get those that were repeated."""
    is_changed = False
    for node, arguments in attention_calls(module.graph).items():
        copies = [arguments.get(name) for name in ("key", "value")]
        if arguments.get("enable_gqa") or not _is_of_gpu(arguments.get("query")) or not all(map(is_static, copies)):
            continue
        if any(not _reads_as(copy, arguments["query"]) for copy in copies):
            continue
        is_broadcast = any(_heads(copy) != _heads(arguments["query"]) for copy in copies)
        sources = [_broadcast(copy, node) if is_broadcast else _source(copy) for copy in copies]
        if None in sources or len({_heads(source) for source in sources}) > 1:
            continue
        key, value = (_shared(copy, source) for copy, source in zip(copies, sources, strict=True))
        node.args, node.kwargs = (), arguments | {"key": key, "value": value, "enable_gqa": True}
        if is_broadcast:
            _keep_strides(node)
        for copy in dict.fromkeys(copies):
            if not copy.users:
                module.graph.erase_node(copy)
        is_changed = True
    if is_changed:
        module.recompile()


def _is_of_gpu(query: Any) -> bool:
    """True for a node of queries of four dimensions on an NVIDIA GPU."""
    if not is_static(query) or torch.version.hip:
        return False
    fake = query.meta["example_value"]
    return fake.dim() == 4 and fake.device.type == "cuda"


def _reads_as(keys: Node, query: Node) -> bool:
    """True for keys or values with the queries' batch and heads, or with one head for all."""
    of_keys, of_query = (node.meta["example_value"].shape for node in (keys, query))
    return len(of_keys) == 4 and of_keys[0] == of_query[0] and of_keys[1] in (1, of_query[1])


def _broadcast(keys: Node, call: Node) -> Node | None:
    """Keys or values of one head for all; None for others, or if they may be written to: PyTorch copies them."""
    return keys if _heads(keys) == 1 and is_unwritten(call, keys) else None


def _keep_strides(call: Node) -> None:
    """Copy the result of a call to the order in which PyTorch's products gave it; fused kernels follow the queries."""
    if call.meta["example_value"].is_contiguous():
        with call.graph.inserting_after(call):
            copy = call.graph.call_method("contiguous", (call,))
        copy.meta["example_value"] = call.meta["example_value"]
        call.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _source(copy: Node) -> Node | None:
    """The node whose elements a copy repeats for adjacent heads: of four dimensions, or of five, of which the third one
    has one element. None if the copy is another one, or if it is needed, as the source may be written to."""
    if copy.op not in ("call_method", "call_function"):
        return None
    source, *options = copy.args or (None,)
    if copy.target == "expand":
        if not is_static(source) or not _reads_as(source, copy) or not is_unwritten(copy, source):
            return None
        rows, repeated_rows = (node.meta["example_value"].shape[2:] for node in (source, copy))
        return source if rows == repeated_rows else None
    if copy.target in _RESHAPES and isinstance(source, Node) and source.target == "expand":
        source = source.args[0]
    elif copy.target not in _REPEATS:
        return None
    if not is_static(source) or not is_unwritten(copy, source):
        return None
    sizes, whole = source.meta["example_value"].shape, tuple(copy.meta["example_value"].shape)
    if copy.target in _REPEATS:
        arguments = dict(zip(("repeats", "dim"), options, strict=False)) | copy.kwargs
        is_along_heads = len(sizes) == 4 and arguments.get("dim") in (1, -3) and isinstance(arguments["repeats"], int)
        return source if is_along_heads and "output_size" not in arguments else None
    repeated = copy.args[0].meta["example_value"].shape
    if len(sizes) != 5 or sizes[2] != 1 or repeated[:2] != sizes[:2] or repeated[3:] != sizes[3:]:
        return None
    batch, heads, groups, *rows = repeated
    return source if whole == (batch, heads * groups, *rows) else None


def _heads(node: Node) -> int:
    return node.meta["example_value"].shape[1]


def _shared(copy: Node, source: Node) -> Node:
    """The source in four dimensions."""
    if source.meta["example_value"].dim() == 4:
        return source
    with copy.graph.inserting_before(copy):
        shared = copy.graph.call_method("squeeze", (source, 2))
    shared.meta["example_value"] = source.meta["example_value"].squeeze(2)
    return shared
