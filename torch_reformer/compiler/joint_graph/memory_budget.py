"""Limit what a forward saves for its backward to a share of what it would save otherwise.

PyTorch's partition takes such a budget (torch._functorch.config.activation_memory_budget), but it only estimates what
it saves under the budget, and it estimates the time of a recomputation by its multiplications alone. Here the saved
bytes are counted, and the estimate includes the bytes that a recomputation moves."""

from __future__ import annotations

import operator
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.device_model import flops_of_operator, kind_of_operator, predicted_us
from ..ir.fx_utils import base_of, bytes_of, copied
from .min_cut import fast_minimum_cut
from .save_random import is_random
from .share_equal_nodes import share_equal_nodes

_TRIES = 4
_LARGE = 1 << 22  # bytes that are moved in the time of a launch: kernels for smaller tensors cost more than they save
_add = torch.ops.aten.add.Tensor


class _Estimator(getattr(partitioners, "CustomRuntimeEstimator", object)):
    """Expected time of an operation on one GPU, the same one on every machine, so that all processes save the same
    tensors."""

    def __call__(self, node: Node) -> float:
        return us_of_node(node, "sm_90")

    def uuid(self) -> str:
        return "reformer"


def current_budget() -> float:
    """The share of what forwards would otherwise save that they may save."""
    return functorch_config.activation_memory_budget


def us_of_node(node: Node, gpu: str) -> float:
    """Expected microseconds of a node's operator."""

    def value(argument):
        return argument.meta["val"] if isinstance(argument, Node) else argument

    count = flops_of_operator(node.target)
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
    flops = count(*args, **kwargs, out_val=node.meta["val"]) if count else 0
    return predicted_us(gpu, kind_of_operator(node.target), sum(map(bytes_of, (node, *node.all_input_nodes))), flops)


def partition_within_budget(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    """PyTorch's partition, repeated with smaller budgets while it saves more than the budget allows."""
    budget = current_budget()
    if budget == 1:
        return _min_cut(joint, inputs, **options)
    if budget == 0:
        return _least(joint, inputs, **options)

    for node in joint.graph.nodes:
        if node.op == "call_function":
            # torch 2.11 asks for the size of nodes without a result, too, such as an assertion.
            node.meta.setdefault("val", ())
    estimator = {"activation_memory_budget_runtime_estimator": _Estimator()}

    def at(budget: float) -> tuple[int, tuple[GraphModule, GraphModule]]:
        with functorch_config.patch(estimator | {"activation_memory_budget": budget}):
            parts = _min_cut(_copy(joint), inputs, **options)
        saved = _saved(parts[0], options["num_fwd_outputs"])
        if any(isinstance(node.meta.get("val"), (list, tuple)) for node in saved):
            # PyTorch saves the whole result of a node that only a mark keeps from being recomputed, even if that is a
            # tuple of results.
            parts = _least(_copy(joint), inputs, **options)
        return saved_bytes(parts[0], options["num_fwd_outputs"]), parts

    allowed = budget * at(1.0)[0]
    least, best = at(budget)
    for _ in range(_TRIES):
        if least <= allowed:
            break
        budget *= allowed / least
        saved, parts = at(budget)
        if saved < least:
            least, best = saved, parts
    return best


def _least(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    """A partition that saves the inputs and what is marked MUST_SAVE. PyTorch's own partition for a budget of 0 ignores
    these marks."""
    for node in joint.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not is_sym_node(node):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
    with functorch_config.patch(activation_memory_budget=1):
        return _min_cut(joint, inputs, **options)


def _min_cut(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    """PyTorch's partition. Large sums of residuals may be computed again from their parts, which products save anyway:
    norms then save no fp32 copies of their inputs. PyTorch's limit on long chains keeps some of the sums."""
    share_equal_nodes(joint)
    additions = joint.graph.find_nodes(op="call_function", target=_add)
    sums = [bytes_of(node) for node in additions if node.meta.get("partitioner_tag") != "is_backward"]
    has_large_sums = any(isinstance(bytes, int) and bytes >= _LARGE for bytes in sums)
    options_of_cut = functorch_config.patch(cse=False, ban_recompute_used_far_apart=not has_large_sums)
    with options_of_cut, fast_minimum_cut(), mock.patch.object(partitioners, "has_recomputable_rng_ops", _draws_again):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def _draws_again(joint: GraphModule) -> bool:
    """True if a backward computes again what draws from a generator, whose state PyTorch saves then. Attention without
    dropout draws nothing, though its operators could."""
    return any(partitioners.must_recompute(node) and is_random(node) for node in joint.graph.nodes)


def _copy(joint: GraphModule) -> GraphModule:
    return GraphModule(joint, copied(joint.graph))


def _saved(forward: GraphModule, outputs: int) -> list[Node]:
    (output,) = forward.graph.find_nodes(op="output")
    return [saved for saved in output.args[0][outputs:] if isinstance(saved, Node)]


def saved_bytes(forward: GraphModule, outputs: int) -> int:
    """Bytes of the memory that a forward's saved tensors keep alive, besides its inputs. Views of parameters, such as
    transposed weights, count as nothing, and views of one tensor count once.

    Args:
        outputs: the number of the forward's own results, before the saved tensors.
    """
    saved = dict.fromkeys(map(base_of, _saved(forward, outputs)))
    return sum(bytes_of(node) for node in saved if node.op != "placeholder")
