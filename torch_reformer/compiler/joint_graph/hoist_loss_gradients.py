"""Hoist the gradients of losses into the forward, where the scores are at hand: the scores are read once, and the
backward reads their finished gradient. It multiplies that in place by the gradient of the loss itself
(lowering/from_fx.py), which is no work if that is 1. Sums of the hoisted gradient over rows, such as a bias's gradient,
are hoisted too if one kernel computes both. Chen et al. (EVT: accelerating deep learning training with epilogue visitor
tree, ASPLOS 2024) hoist a loss's gradient in this way, and do not compute the loss any more."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.custom_ops import DONATED, USER_CAST, scaled
from ..ir.fx_utils import SUMS, VIEWS, followers, is_element_wise, size_of
from ..ir.iteration_space import LONGEST_ROW
from ..ir.kernel_limits import SMALL

aten = torch.ops.aten

_OF_ONE = VIEWS | {aten.neg.default, aten._to_copy.default, aten.clone.default, aten.detach.default}
_PRODUCTS = {aten.mul.Tensor, aten.mul.Scalar}
_QUOTIENTS = {aten.div.Tensor, aten.div.Scalar}
_SUMS = {aten.add.Tensor, aten.sub.Tensor}
_TYPES = (torch.float32, torch.float64, torch.bfloat16)  # fp16 might not hold the gradient of an unscaled loss


def hoist_loss_gradients(joint: GraphModule) -> None:
    """Hoist the gradients of scalar losses into the forward.

    The gradient t of a loss enters a joint graph as a tangent. Nodes that are linear in t alone, and that no
    element-wise operation reads together with other values of the backward, are computed for t = 1 in the forward and
    scaled by t in the backward."""
    tangents = [node for node in joint.graph.find_nodes(op="placeholder") if "tangents" in str(node.target)]
    backward = followers(joint, tangents)
    for tangent in tangents:
        value = tangent.meta.get("val")
        if isinstance(value, Tensor) and value.dim() == 0 and value.dtype in _TYPES:
            linear = _linear(joint, tangent, backward)
            last = _last(linear)
            if last and all(_is_worth_it(node, linear, backward) for node in last):
                _hoist(joint, tangent, linear, last)


def hoist_column_sums(forward: GraphModule, backward: GraphModule) -> None:
    """Hoist column sums of hoisted gradients, too. The partition saves as little as it can, and so leaves the sums to
    the backward, which would read the gradient once more for them."""
    (output,) = forward.graph.find_nodes(op="output")
    results = {node.name: node for node in output.all_input_nodes}
    for late in backward.graph.find_nodes(op="call_function", target=scaled):
        chain = [late.args[0]]
        while len(chain[-1].all_input_nodes) == 1:
            chain += chain[-1].all_input_nodes
        *moved, gradient = chain
        if not moved or gradient.name not in results:
            continue
        saved = early = results[gradient.name]
        for node in reversed(moved):
            with forward.graph.inserting_before(output):
                early = forward.graph.node_copy(node, lambda _, early=early: early)
        with backward.graph.inserting_after(gradient):
            placeholder = backward.graph.placeholder(early.name)
        placeholder.meta = dict(early.meta)
        late.replace_input_with(moved[0], placeholder)
        for node in moved:
            if not node.users:
                backward.graph.erase_node(node)
        place = output.args[0].index(saved)
        replacement = (saved, early) if gradient.users else (early,)
        output.args = ((*output.args[0][:place], *replacement, *output.args[0][place + 1 :]), *output.args[1:])
        if not gradient.users:
            backward.graph.erase_node(gradient)


def _linear(joint: GraphModule, tangent: Node, backward: set[Node]) -> dict[Node, None]:
    """The tangent and all nodes that are linear in it with factors of the forward, in the graph's order."""
    linear = {tangent: None}
    for node in joint.graph.nodes:
        if node in backward and node.op == "call_function" and _is_linear(node, linear, backward):
            linear[node] = None
    return linear


def _is_linear(node: Node, linear: dict[Node, None], backward: set[Node]) -> bool:
    def is_factor(argument) -> bool:
        return not isinstance(argument, Node) or argument not in backward

    args, target = node.args, node.target
    if target in _OF_ONE or _summed(node) in ("rows", "columns"):
        return args[0] in linear
    if target in _PRODUCTS:
        return any(a in linear and is_factor(b) for a, b in (args[:2], args[1::-1]))
    if target in _QUOTIENTS:
        return args[0] in linear and is_factor(args[1])
    if target in _SUMS:
        return all(argument in linear or _is_zero(argument) for argument in args[:2])
    if target is aten.where.self:
        return is_factor(args[0]) and all(argument in linear or _is_zero(argument) for argument in args[1:])
    return target is aten.gelu_backward.default and args[0] in linear and is_factor(args[1])


def _summed(node: Node) -> str | None:
    """The kind of a sum: "rows" or "columns" if each of these has one result, or "others"; None if the node is no
    sum."""
    if node.target is not aten.sum.dim_IntList:
        return None
    dims = _summed_dims(node)
    if not dims:  # the sum of a single number
        return "others"
    *others, last = range(node.args[0].meta["val"].dim())
    return {(last,): "rows", tuple(others): "columns"}.get(tuple(dims), "others")


def _summed_dims(node: Node) -> list[int]:
    """Dimensions that a sum or a maximum reduces, in ascending order; all of them if the node names none."""
    rank = node.args[0].meta["val"].dim()
    dims = node.args[1] if len(node.args) > 1 else None
    return sorted(dim % rank for dim in dims) if dims and rank else [*range(rank)]


def _is_zero(argument) -> bool:
    if not isinstance(argument, Node):
        return argument == 0
    if argument.target is aten.zeros_like.default:
        return True
    value_index = {aten.scalar_tensor.default: 0, aten.full.default: 1}.get(argument.target)
    return value_index is not None and argument.args[value_index] == 0


def _last(linear: dict[Node, None]) -> list[Node]:
    """Large linear nodes, and column sums of them, that have a user outside `linear`, or a view that has one."""
    needed: set[Node] = set()
    summed: dict[Node, Node] = {}  # a column sum -> the node whose columns it sums
    for node in linear:
        if _summed(node) == "columns":
            summed[node] = node.args[0]
        elif node.target in _OF_ONE and node.args[0] in summed:
            summed[node] = summed[node.args[0]]
    for node in reversed(linear):
        has_needed_view = any(user in needed and user.target in VIEWS for user in node.users)
        source = summed.get(node, node)
        if size_of(source) <= SMALL or (node in summed and _follows_long_rows(source)):
            continue
        if has_needed_view or not linear.keys() >= node.users.keys():
            needed.add(node)
    return [node for node in linear if node in needed and not (node.target in VIEWS and node.args[0] in needed)]


def _follows_long_rows(node: Node) -> bool:
    """True if the node depends on a reduction of rows so long that the same kernel cannot sum the node's columns."""
    seen, todo = {node}, [node]
    while todo:
        visited = todo.pop()
        if visited.target in SUMS or visited.target is aten.amax.default:
            value = visited.args[0].meta["val"]
            if value.dim() and _summed_dims(visited) == [value.dim() - 1] and value.shape[-1] > LONGEST_ROW:
                return True
        if is_element_wise(visited) or visited.target in VIEWS | SUMS | {aten.amax.default}:
            todo += [input for input in visited.all_input_nodes if input not in seen]
            seen.update(visited.all_input_nodes)
    return False


def _is_worth_it(node: Node, linear: dict[Node, None], backward: set[Node]) -> bool:
    """True if the node is dense, is read by matrix products or is a result of the graph, and has no more elements than
    the forward tensor it is computed from, which the backward then need not read."""
    value = node.meta["val"]
    dense = value.is_contiguous() or value.is_contiguous(memory_format=torch.channels_last)
    others = [user for user in node.users if user not in linear]
    if value.dtype not in _TYPES or not dense or any(map(is_element_wise, others)):
        return False
    read, seen, todo = 0, set(), [node]
    while todo:
        for input in todo.pop().all_input_nodes:
            if input in linear and input not in seen:
                seen.add(input)
                todo.append(input)
            elif input not in backward:
                if "recompute" in input.meta:
                    return False  # a checkpoint of the user's decides what is saved
                read = max(read, size_of(input))
    return read >= value.numel()


def _hoist(joint: GraphModule, tangent: Node, linear: dict[Node, None], last: list[Node]) -> None:
    """Compute the linear nodes for a tangent of 1, and scale the last ones by the tangent."""
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
                of_one[node] = joint.graph.node_copy(node, lambda input: of_one.get(input, input))
            of_one[node].meta = {name: node.meta[name] for name in ("val", USER_CAST) if name in node.meta}
    for node in last:
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
