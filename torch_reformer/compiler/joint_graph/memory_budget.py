"""A share of what a forward saves for its backward, by PyTorch's partition: it takes a budget
(torch._functorch.config.activation_memory_budget), but estimates what it saves then, and how long it takes to compute
that again by multiplications alone. Here the one is counted, and the other has bytes in it."""

from __future__ import annotations

import copy
import operator
from unittest import mock

import torch
from torch import Tensor
from torch._functorch import compile_utils, partitioners
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.device_model import flops_of_operator, kind_of_operator, predicted_us
from .save_random import is_random

_TRIES = 4


class _Estimator(getattr(partitioners, "CustomRuntimeEstimator", object)):
    """How long an operation takes, on one GPU of all that there are, so that every process saves the same."""

    def __call__(self, node: Node) -> float:
        def value(each):
            return each.meta["val"] if isinstance(each, Node) else each

        count = flops_of_operator(node.target)
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
        flops = count(*args, **kwargs, out_val=node.meta["val"]) if count else 0
        return predicted_us(
            "sm_90", kind_of_operator(node.target), sum(map(_bytes, (node, *node.all_input_nodes))), flops
        )

    def uuid(self) -> str:
        return "reformer"


def partition_within_budget(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    """PyTorch's partition, with a smaller budget where it saves more than that allows."""
    budget = functorch_config.activation_memory_budget
    if budget == 1:
        return _min_cut(joint, inputs, **options)
    if budget == 0:
        return _least(joint, inputs, **options)

    for node in joint.graph.nodes:
        if node.op == "call_function":
            node.meta.setdefault("val", ())  # torch 2.11 asks what has no result, such as an assertion, for its size
    own = {"activation_memory_budget_runtime_estimator": _Estimator()}

    def at(budget: float) -> tuple[int, tuple[GraphModule, GraphModule]]:
        with functorch_config.patch(own | {"activation_memory_budget": budget}):
            found = _min_cut(_copy(joint), inputs, **options)
        saved = _saved(found[0], options["num_fwd_outputs"])
        if any(isinstance(each.meta.get("val"), (list, tuple)) for each in saved):
            # PyTorch saves whole what only its mark keeps from being computed again, be it several results.
            found = _least(_copy(joint), inputs, **options)
        return saved_bytes(found[0], options["num_fwd_outputs"]), found

    allowed = budget * at(1.0)[0]
    best, found = at(budget)
    for _ in range(_TRIES):
        if best <= allowed:
            break
        budget *= allowed / best
        saved, other = at(budget)
        if saved < best:
            best, found = saved, other
    return found


def _least(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    """A partition that saves the inputs, and of the rest what is marked so: PyTorch's own for a budget of 0 asks for no
    marks."""
    for node in joint.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not is_sym_node(node):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
    with functorch_config.patch(activation_memory_budget=1):
        return _min_cut(joint, inputs, **options)


def _min_cut(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    """PyTorch's partition, which takes equal operations for one, but those that draw random numbers: all of them."""
    drawing = [compile_utils.get_aten_target(node) for node in joint.graph.nodes if is_random(node)]
    with mock.patch.object(compile_utils, "rand_ops", [*compile_utils.rand_ops, *drawing]):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def _copy(joint: GraphModule) -> GraphModule:
    return GraphModule(joint, copy.deepcopy(joint.graph))


def _saved(forward: GraphModule, outputs: int) -> list[Node]:
    (output,) = forward.graph.find_nodes(op="output")
    return [each for each in output.args[0][outputs:] if isinstance(each, Node)]


def saved_bytes(forward: GraphModule, outputs: int) -> int:
    """Bytes that stay in memory for what a forward saves, besides what it is given: views of parameters, as transposed
    weights, take none, and views of one tensor take it once. outputs: how many results it has."""
    saved = dict.fromkeys(map(base_of, _saved(forward, outputs)))
    return sum(_bytes(each) for each in saved if each.op != "placeholder")


def base_of(node: Node) -> Node:
    """What has the memory of a node's result."""
    while getattr(node.target, "is_view", False):
        node = node.args[0]
    return node


def _bytes(node: Node) -> int:
    """A tensor's, if its sizes are known."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not all(isinstance(each, int) for each in value.shape):
        return 0
    return value.numel() * value.itemsize
