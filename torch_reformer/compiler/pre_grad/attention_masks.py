"""Simplify masks of attention, so that PyTorch's fused kernels support them.

Models drop a mask that masks nothing if they can look at its values; under torch.compile they cannot, and keep it. With
such a mask, or with one whose rows repeat one element in memory, PyTorch would compute full matrices of scores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from ..ir.fake_tensors import real_tensors
from .attention_calls import attention_calls
from .writes import is_known, may_write, memory_of

_MOST_ELEMENTS = 2**26  # of a constant that is computed here


def simplify_masks(module: GraphModule) -> None:
    """Change Dynamo's graph: drop masks that mask nothing, and replace causal ones by `is_causal=True`. On GPUs, other
    masks get rows of adjacent elements."""
    calls = {}
    for node, arguments in attention_calls(module.graph).items():
        if isinstance(arguments.get("attn_mask"), Node) and not arguments.get("is_causal"):
            calls[node] = arguments
    if not calls:
        return
    constants, dense = constants_of(module.graph), {}
    for node, arguments in calls.items():
        mask = arguments["attn_mask"]
        simpler = _as_arguments(arguments, constants.get(mask)) or _dense(mask, dense)
        if simpler is not None:
            node.args, node.kwargs = (), arguments | simpler
    module.recompile()


def _as_arguments(arguments: dict[str, Any], mask: Any) -> dict[str, Any] | None:
    """Arguments that mean the same as the mask, which is a constant; None if there are none."""
    query, key = (arguments[name].meta.get("example_value") for name in ("query", "key"))
    if not isinstance(mask, Tensor) or mask.device.type != "cpu" or query is None or key is None:
        return None
    scores = (*query.shape[:-1], key.shape[-2])
    if mask.dim() > len(scores) or not all(isinstance(size, int) for size in scores):
        return None
    if any(size not in (1, full) for size, full in zip(mask.shape[::-1], scores[::-1], strict=False)):
        return None
    passes = mask if mask.dtype == torch.bool else mask == 0  # masks of other types are added to the scores
    blocked = ~passes if mask.dtype == torch.bool else mask == -torch.inf
    if not (passes | blocked).all():
        return None
    if passes.all():
        return {"attn_mask": None}
    if mask.shape[-2:] == scores[-2:] and torch.equal(passes, torch.ones(scores[-2:]).tril().bool().expand_as(passes)):
        return {"attn_mask": None, "is_causal": True}
    return None


def _dense(mask: Node, known: dict[Node, Node]) -> dict[str, Any] | None:
    """Contiguous copy of a GPU's mask whose rows are not adjacent elements, one for all calls; None for other masks."""
    fake = mask.meta["example_value"]
    if fake.device.type == "cpu" or fake.dim() == 0 or fake.shape[-1] == 1 or fake.stride(-1) == 1:
        return None
    if mask not in known:
        with mask.graph.inserting_after(mask):
            known[mask] = mask.graph.call_method("contiguous", (mask,))
        known[mask].meta["example_value"] = fake.contiguous()
    return {"attn_mask": known[mask]}


def constants_of(graph: Graph) -> dict[Node, Any]:
    """Values, on the CPU, of nodes that do not depend on the graph's inputs; empty if one of them is written to."""
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        if _is_computed(node) and all(operand in values for operand in node.all_input_nodes):
            try:
                with real_tensors(), torch.no_grad(), _Functions():
                    values[node] = _run(node, values)
            except Exception:  # noqa: BLE001  then the node is no constant
                continue
    memories = {memory_of(node) for node in values} - {None}
    for node in graph.nodes:
        if node.op not in ("placeholder", "output", "get_attr") and may_write(node):
            if memories & {memory_of(operand) for operand in node.all_input_nodes}:
                return {}
    return values


def _is_computed(node: Node) -> bool:
    """True if the node can be computed here: a known function without writes, whose result is not too large."""
    fake = node.meta.get("example_value")
    if isinstance(fake, Tensor) and not (isinstance(fake.numel(), int) and fake.numel() <= _MOST_ELEMENTS):
        return False
    return is_known(node) and not may_write(node)


class _Functions(TorchDispatchMode):
    """Mode that raises RuntimeError for an operator whose result is not fixed, or that writes to an argument."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags or func._schema.is_mutable or "empty" in func.name():
            raise RuntimeError(f"the result of {func} does not only depend on its arguments")
        return func(*args, **(kwargs or {}))


def _run(node: Node, values: dict[Node, Any]) -> Any:
    """Compute a node from the values of its operands, on the CPU."""

    def on_cpu(arg):
        is_device = isinstance(arg, torch.device) or (isinstance(arg, str) and arg.startswith(("cuda", "meta")))
        return torch.device("cpu") if is_device else arg

    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    args, kwargs = [on_cpu(arg) for arg in args], {name: on_cpu(arg) for name, arg in kwargs.items()}
    call = getattr(args[0], node.target) if node.op == "call_method" else node.target
    return call(*args[node.op == "call_method" :], **kwargs)
