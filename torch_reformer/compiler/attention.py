"""Masks of attention, such that PyTorch's fused kernels take them. A model under torch.compile builds masks that it
leaves out when it can look at their values; with these, or with one that repeats its elements along rows, PyTorch would
multiply whole matrices of scores."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from .fakes import real_tensors

_ARGUMENTS = "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
_MOST_ELEMENTS = 2**26  # of a constant
_WRITES = {operator.setitem, *(getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "and", "or", "xor"))}


def simplify_masks(module: GraphModule) -> None:
    """Changes the graph, which is Dynamo's: masks that let all pass, or each place what is not after it, become
    arguments. Others get rows of adjacent elements on GPUs."""
    found = {}
    for node in module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
        given = dict(zip(_ARGUMENTS, node.args, strict=False)) | node.kwargs
        if isinstance(given.get("attn_mask"), Node) and not given.get("is_causal"):
            found[node] = given
    if not found:
        return
    constants = _constants(module.graph)
    for node, given in found.items():
        mask = given["attn_mask"]
        if (simpler := _simpler(mask, constants.get(mask))) is not None:
            node.args, node.kwargs = (), given | simpler
            _erase_unused(mask)
    module.recompile()


def _simpler(mask: Node, constant: Tensor | None) -> dict[str, Any] | None:
    """Arguments in the place of the mask's, or None."""
    if constant is not None:
        passes = constant if constant.dtype == torch.bool else constant == 0  # others are added to scores
        if (passes | (constant == (False if constant.dtype == torch.bool else -torch.inf))).all():
            if passes.all():
                return {"attn_mask": None}
            if torch.equal(passes, torch.ones(passes.shape[-2:], dtype=torch.bool).tril().expand_as(passes)):
                return {"attn_mask": None, "is_causal": True}
    fake = mask.meta["example_value"]
    if fake.device.type == "cpu" or fake.shape[-1] == 1 or fake.stride(-1) == 1:
        return None
    with mask.graph.inserting_after(mask):
        dense = mask.graph.call_method("contiguous", (mask,))
    dense.meta["example_value"] = fake.contiguous()
    return {"attn_mask": dense}


def _constants(graph: Graph) -> dict[Node, Any]:
    """What does not depend on the graph's inputs, computed on the CPU."""
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        known = [each in values for each in node.all_input_nodes]
        if not all(known) or not _is_computed(node):
            if any(known) and _writes(node):
                return {}  # views may share what it changes
            continue
        try:
            with real_tensors(), torch.no_grad(), _Repeatable():
                values[node] = _run(node, values)
        except (RuntimeError, TypeError):  # then it is none
            if _writes(node):
                return {}
    return values


def _is_computed(node: Node) -> bool:
    """Whether it is a function of PyTorch's or an operator of Python's, of a result that is not too large."""
    fake, name = node.meta.get("example_value"), getattr(node.target, "__name__", "")
    if isinstance(fake, Tensor) and not fake.numel() <= _MOST_ELEMENTS:
        return False
    known = any(getattr(each, name, None) is node.target for each in (torch, operator))
    return node.op == "call_method" or (node.op == "call_function" and known)


def _writes(node: Node) -> bool:
    """Whether it may change an argument."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or node.target in _WRITES or "out" in node.kwargs


class _Repeatable(TorchDispatchMode):
    """Raises RuntimeError for an operator whose results are random."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise RuntimeError(f"{func} gives random numbers")
        return func(*args, **(kwargs or {}))


def _run(node: Node, values: dict[Node, Any]) -> Any:
    def on_cpu(each):
        return torch.device("cpu") if isinstance(each, torch.device) else each

    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    args, kwargs = [on_cpu(each) for each in args], {name: on_cpu(each) for name, each in kwargs.items()}
    call = getattr(args[0], node.target) if node.op == "call_method" else node.target
    return call(*args[node.op == "call_method" :], **kwargs)


def _erase_unused(node: Node) -> None:
    if not node.users and node.op != "placeholder":
        inputs = node.all_input_nodes
        node.graph.erase_node(node)
        for each in inputs:
            _erase_unused(each)
