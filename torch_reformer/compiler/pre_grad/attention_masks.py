"""Masks of attention, such that PyTorch's fused kernels take them. A model under torch.compile builds masks that it
inputs out when it can look at their values; with these, or with one that repeats its elements along rows, PyTorch would
multiply whole matrices of scores."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from ..ir.fake_tensors import real_tensors

_ARGUMENTS = "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
_MOST_ELEMENTS = 2**26  # of a constant
_NO_WRITES = ("index", "inv", "invert", "is_", "is_not", "indexOf", "itemgetter")
_WRITES = {operator.setitem, operator.delitem}
_WRITES |= {getattr(operator, name) for name in dir(operator) if name.startswith("i") and name not in _NO_WRITES}


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
    constants, dense = _constants(module.graph), {}
    for node, given in found.items():
        mask = given["attn_mask"]
        simpler = _as_arguments(given, constants.get(mask)) or _dense(mask, dense)
        if simpler is not None:
            node.args, node.kwargs = (), given | simpler
    module.recompile()


def _as_arguments(given: dict[str, Any], mask: Any) -> dict[str, Any] | None:
    """What says the same as the mask, if there is such."""
    query, key = (given[name].meta.get("example_value") for name in ("query", "key"))
    if not isinstance(mask, Tensor) or mask.device.type != "cpu" or query is None or key is None:
        return None
    scores = (*query.shape[:-1], key.shape[-2])
    if mask.dim() > len(scores) or not all(isinstance(each, int) for each in scores):
        return None
    if any(own not in (1, whole) for own, whole in zip(mask.shape[::-1], scores[::-1], strict=False)):
        return None
    passes = mask if mask.dtype == torch.bool else mask == 0  # others are added to scores
    blocked = ~passes if mask.dtype == torch.bool else mask == -torch.inf
    if not (passes | blocked).all():
        return None
    if passes.all():
        return {"attn_mask": None}
    if mask.shape[-2:] == scores[-2:] and torch.equal(passes, torch.ones(scores[-2:]).tril().bool().expand_as(passes)):
        return {"attn_mask": None, "is_causal": True}
    return None


def _dense(mask: Node, known: dict[Node, Node]) -> dict[str, Any] | None:
    """The mask with rows of adjacent elements; once for all that have it."""
    fake = mask.meta["example_value"]
    if fake.device.type == "cpu" or fake.dim() == 0 or fake.shape[-1] == 1 or fake.stride(-1) == 1:
        return None
    if mask not in known:
        with mask.graph.inserting_after(mask):
            known[mask] = mask.graph.call_method("contiguous", (mask,))
        known[mask].meta["example_value"] = fake.contiguous()
    return {"attn_mask": known[mask]}


def _constants(graph: Graph) -> dict[Node, Any]:
    """What does not depend on the graph's inputs, computed on the CPU; nothing if any of it is written to."""
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        if _is_computed(node) and all(each in values for each in node.all_input_nodes):
            try:
                with real_tensors(), torch.no_grad(), _Functions():
                    values[node] = _run(node, values)
            except Exception:  # noqa: BLE001  whatever it is, it is no constant
                continue
    memories = {_memory(node) for node in values} - {None}
    for node in graph.nodes:
        if node.op not in ("placeholder", "output", "get_attr") and _may_write(node):
            read = [_memory(each) for each in node.all_input_nodes]
            if memories & set(read):
                return {}
    return values


def _memory(node: Node) -> int | None:
    """The fake memory that it is in, which views share."""
    fake = node.meta.get("example_value")
    return fake.untyped_storage()._cdata if isinstance(fake, Tensor) else None


def _is_known(node: Node) -> bool:
    """Whether it is a function of PyTorch's, an operator of Python's, or a method."""
    name = getattr(node.target, "__name__", "")
    known = any(getattr(each, name, None) is node.target for each in (torch, operator, F))
    return node.op == "call_method" or (node.op == "call_function" and (known or node.target is getattr))


def _is_computed(node: Node) -> bool:
    """Whether it may be a constant that is not too large."""
    fake = node.meta.get("example_value")
    if isinstance(fake, Tensor) and not (isinstance(fake.numel(), int) and fake.numel() <= _MOST_ELEMENTS):
        return False
    return _is_known(node) and not _may_write(node)


def _may_write(node: Node) -> bool:
    """Whether it may change an argument."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    is_kind = node.target is F.scaled_dot_product_attention or _is_known(node)
    return not is_kind or in_place or node.target in _WRITES or "out" in node.kwargs or "inplace" in node.kwargs


class _Functions(TorchDispatchMode):
    """Raises RuntimeError for an operator that has no fixed result, or that writes to an argument."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags or func._schema.is_mutable or "empty" in func.name():
            raise RuntimeError(f"{func} is no function of its arguments")
        return func(*args, **(kwargs or {}))


def _run(node: Node, values: dict[Node, Any]) -> Any:
    def on_cpu(each):
        is_device = isinstance(each, torch.device) or (isinstance(each, str) and each.startswith(("cuda", "meta")))
        return torch.device("cpu") if is_device else each

    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    args, kwargs = [on_cpu(each) for each in args], {name: on_cpu(each) for name, each in kwargs.items()}
    call = getattr(args[0], node.target) if node.op == "call_method" else node.target
    return call(*args[node.op == "call_method" :], **kwargs)
