"""A loss's gradient is computed where the loss is, from the scores that are at hand there: they are read once, and the
backward finds their gradient. There it is multiplied in place by the loss's own gradient (lowering/from_fx.py), which is nothing
to do where that is 1. Sums of it over rows, as of a bias, come with it if one kernel computes both. Chen et al. (EVT:
accelerating deep learning training with epilogue visitor tree, ASPLOS 2024) move a loss's gradient so, and give up the
loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.custom_ops import DONATED, USER_CAST, scaled
from ..ir.fx_utils import SUMS, VIEWS, is_element_wise, size_of
from ..ir.iteration_space import LONGEST_ROW
from ..ir.kernel_limits import SMALL

aten = torch.ops.aten

_OF_ONE = VIEWS | {aten.neg.default, aten._to_copy.default, aten.clone.default, aten.detach.default}
_PRODUCTS = {aten.mul.Tensor, aten.mul.Scalar}
_QUOTIENTS = {aten.div.Tensor, aten.div.Scalar}
_SUMS = {aten.add.Tensor, aten.sub.Tensor}
_TYPES = (torch.float32, torch.float64, torch.bfloat16)  # fp16 might not hold the gradient of an unscaled loss


def hoist_loss_gradients(joint: GraphModule) -> None:
    """Moves gradients of losses, which are one number each, to the forward.

    A loss's gradient t enters a joint graph as a tangent. What is linear in t alone, and read by no element-wise
    operation with something else of the backward, is computed for t = 1 in the forward and scaled by t afterwards."""
    tangents = [node for node in joint.graph.find_nodes(op="placeholder") if "tangents" in str(node.target)]
    backward = _followers(joint, tangents)
    for tangent in tangents:
        value = tangent.meta.get("val")
        if isinstance(value, Tensor) and value.dim() == 0 and value.dtype in _TYPES:
            linear = _linear(joint, tangent, backward)
            found = _last(linear)
            if found and all(_is_worth_it(node, linear, backward) for node in found):
                _move(joint, tangent, linear, found)


def hoist_column_sums(forward: GraphModule, backward: GraphModule) -> None:
    """Has the forward compute the sums that hoist_loss_gradients() moved to it: a partition, which saves as little as it can,
    inputs them to the backward, to read the gradient once more."""
    (output,) = forward.graph.find_nodes(op="output")
    results = {node.name: node for node in output.all_input_nodes}
    for late in backward.graph.find_nodes(op="call_function", target=scaled):
        chain = [late.args[0]]
        while len(chain[-1].all_input_nodes) == 1:
            chain += chain[-1].all_input_nodes
        *moved, given = chain
        if not moved or given.name not in results:
            continue
        saved = early = results[given.name]
        for node in reversed(moved):
            with forward.graph.inserting_before(output):
                early = forward.graph.node_copy(node, lambda _, early=early: early)
        with backward.graph.inserting_after(given):
            found = backward.graph.placeholder(early.name)
        found.meta = dict(early.meta)
        late.replace_input_with(moved[0], found)
        for node in moved:
            if not node.users:
                backward.graph.erase_node(node)
        place = output.args[0].index(saved)
        instead = (saved, early) if given.users else (early,)
        output.args = ((*output.args[0][:place], *instead, *output.args[0][place + 1 :]), *output.args[1:])
        if not given.users:
            backward.graph.erase_node(given)
    forward.recompile()
    backward.recompile()


def _followers(joint: GraphModule, tangents: list[Node]) -> set[Node]:
    found = set(tangents)
    for node in joint.graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _linear(joint: GraphModule, tangent: Node, backward: set[Node]) -> dict[Node, None]:
    """The tangent, and what is linear in it with factors of the forward, in order."""
    found = {tangent: None}
    for node in joint.graph.nodes:
        if node in backward and node.op == "call_function" and _is_linear(node, found, backward):
            found[node] = None
    return found


def _is_linear(node: Node, linear: dict[Node, None], backward: set[Node]) -> bool:
    def is_factor(each) -> bool:
        return not isinstance(each, Node) or each not in backward

    args, target = node.args, node.target
    if target in _OF_ONE or _summed(node) in ("rows", "columns"):
        return args[0] in linear
    if target in _PRODUCTS:
        return any(a in linear and is_factor(b) for a, b in (args[:2], args[1::-1]))
    if target in _QUOTIENTS:
        return args[0] in linear and is_factor(args[1])
    if target in _SUMS:
        return all(each in linear or _is_zero(each) for each in args[:2])
    if target is aten.where.self:
        return is_factor(args[0]) and all(each in linear or _is_zero(each) for each in args[1:])
    return target is aten.gelu_backward.default and args[0] in linear and is_factor(args[1])


def _summed(node: Node) -> str | None:
    """What is summed up to a number each, if the node is a sum: rows, columns or something else."""
    if node.target is not aten.sum.dim_IntList:
        return None
    dims = _summed_dims(node)
    if not dims:  # of a single number
        return "others"
    *others, last = range(node.args[0].meta["val"].dim())
    return {(last,): "rows", tuple(others): "columns"}.get(tuple(dims), "others")


def _summed_dims(node: Node) -> list[int]:
    """The dimensions over which a node sums or takes the maximum, in order: all if none are given."""
    rank = node.args[0].meta["val"].dim()
    dims = node.args[1] if len(node.args) > 1 else None
    return sorted(each % rank for each in dims) if dims and rank else [*range(rank)]


def _is_zero(each) -> bool:
    if not isinstance(each, Node):
        return each == 0
    if each.target is aten.zeros_like.default:
        return True
    made = {aten.scalar_tensor.default: 0, aten.full.default: 1}.get(each.target)
    return made is not None and each.args[made] == 0


def _last(linear: dict[Node, None]) -> list[Node]:
    """Large ones, and what is made of sums of such over rows, that others need, or of which others need a view."""
    needed: set[Node] = set()
    of_sums: dict[Node, Node] = {}  # -> what is summed up
    for node in linear:
        if _summed(node) == "columns":
            of_sums[node] = node.args[0]
        elif node.target in _OF_ONE and node.args[0] in of_sums:
            of_sums[node] = of_sums[node.args[0]]
    for node in reversed(linear):
        is_view = any(each in needed and each.target in VIEWS for each in node.users)
        of = of_sums.get(node, node)
        if size_of(of) <= SMALL or (node in of_sums and _follows_long_rows(of)):
            continue
        if is_view or not linear.keys() >= node.users.keys():
            needed.add(node)
    return [node for node in linear if node in needed and not (node.target in VIEWS and node.args[0] in needed)]


def _follows_long_rows(node: Node) -> bool:
    """Whether it is computed with what is reduced of rows that are too long to be added up by the same kernel."""
    seen, todo = {node}, [node]
    while todo:
        each = todo.pop()
        if each.target in SUMS or each.target is aten.amax.default:
            value = each.args[0].meta["val"]
            if value.dim() and _summed_dims(each) == [value.dim() - 1] and value.shape[-1] > LONGEST_ROW:
                return True
        if is_element_wise(each) or each.target in VIEWS | SUMS | {aten.amax.default}:
            todo += [one for one in each.all_input_nodes if one not in seen]
            seen.update(each.all_input_nodes)
    return False


def _is_worth_it(node: Node, linear: dict[Node, None], backward: set[Node]) -> bool:
    """Whether it is dense, is a product's operand or a result, and has no more elements than what it is computed of,
    which the backward need not read then."""
    value = node.meta["val"]
    dense = value.is_contiguous() or value.is_contiguous(memory_format=torch.channels_last)
    others = [each for each in node.users if each not in linear]
    if value.dtype not in _TYPES or not dense or any(map(is_element_wise, others)):
        return False
    read, seen, todo = 0, set(), [node]
    while todo:
        for each in todo.pop().all_input_nodes:
            if each in linear and each not in seen:
                seen.add(each)
                todo.append(each)
            elif each not in backward:
                if "recompute" in each.meta:
                    return False  # the user says what is saved
                read = max(read, size_of(each))
    return read >= value.numel()


def _move(joint: GraphModule, tangent: Node, linear: dict[Node, None], found: list[Node]) -> None:
    value = tangent.meta["val"]
    options = {"dtype": value.dtype, "device": value.device}
    first = next(node for node in linear if node.op == "call_function")
    with joint.graph.inserting_before(first):
        one = joint.graph.call_function(aten.scalar_tensor.default, (1.0,), options)
    one.meta["val"] = value
    of_one = {tangent: one}
    for node in linear:
        if node is not tangent:
            with joint.graph.inserting_before(node):
                of_one[node] = joint.graph.node_copy(node, lambda each: of_one.get(each, each))
            of_one[node].meta = {name: node.meta[name] for name in ("val", USER_CAST) if name in node.meta}
    for node in found:
        early = of_one[node]
        early.meta |= {"recompute": CheckpointPolicy.MUST_SAVE, DONATED: True}
        with joint.graph.inserting_before(node):
            late = joint.graph.call_function(scaled, (early, tangent))
        with node.meta["val"].fake_mode:
            late.meta["val"] = torch.empty_like(node.meta["val"])
        node.replace_all_uses_with(late)
    for node in [*reversed(linear), *reversed(of_one.values())]:
        if not node.users and node.op == "call_function":
            joint.graph.erase_node(node)
    joint.recompile()
