"""Compute of an expanded tensor's one copy what would be equal for all copies, and expand the result.

Models expand learned queries, tokens and positions to a batch, and then compute: ConViT's scores of positions are a
layer and a softmax of so many equal images. Autograd then sums the gradient over the copies before it goes back through
the layers, so that the backward has one copy, too. Each element of the result has the operands that it had; sums of
gradients are rounded at another place.

Only operators go before an expansion that compute each copy alone and alike, of it and of tensors that are equal for
all copies. Drawing random numbers is none of them. Where others than element-wise operators read the result, and where
it is one of the graph's, it is copied to what it was.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from .attention_calls import is_static
from .fake_results import fake_result
from .writes import is_known, may_write, memory_of

_ELEMENT_WISE = {
    *("add", "sub", "mul", "div", "true_divide", "truediv", "neg", "pow", "exp", "log", "sqrt", "rsqrt", "square"),
    *("abs", "sin", "cos", "sigmoid", "tanh", "relu", "gelu", "silu", "maximum", "minimum", "where", "clamp"),
    *("float", "half", "bfloat16", "to"),
}
_VIEWS = {"permute", "transpose", "unsqueeze"}
_EXPANSIONS = {"expand", "expand_as", "broadcast_to", "repeat"}
_SOFTMAX, _LINEAR, _LAYER_NORM = "softmax", "linear", "layer_norm"
_WORTH_IT = {_SOFTMAX, _LINEAR, _LAYER_NORM}  # with these, less is computed; others may be fused with what reads them
_LAYER_NORM_ARGUMENTS = inspect.signature(F.layer_norm)


def postpone_expands(module: GraphModule) -> None:
    """Change Dynamo's graph: operators on expanded tensors work on the tensors before the expansion."""
    graph, is_changed = module.graph, False
    writers = [node for node in graph.nodes if node.op != "output" and may_write(node)]  # results are copied
    written = {memory_of(node) for writer in writers for node in writer.all_input_nodes}
    for expand in [node for node in graph.nodes if _name(node) in _EXPANSIONS]:
        single = _single_copies(expand)
        while (node := _not_worth_a_copy(single)) is not None:
            single = _without(single, node)
        memories = {memory_of(node) for node in (expand, *single)}
        if any(_name(node) in _WORTH_IT for node in single) and memories.isdisjoint(written):
            _postpone(expand, single)
            is_changed = True
    if is_changed:
        module.recompile()


def _name(node: Node) -> str:
    """The name of a method, or of a function of PyTorch or operator of Python; none for others."""
    if node.op == "call_method":
        return node.target
    return getattr(node.target, "__name__", "") if is_known(node) or node.target is F.linear else ""


def _single_copies(expand: Node) -> dict[Node, Tensor]:
    """Fake results for one copy of the operators behind an expansion that may go before it, in the graph's order."""
    source = expand.args[0] if expand.args else None
    if not is_static(expand) or not is_static(source):
        return {}
    before, fake = source.meta["example_value"], expand.meta["example_value"]
    changes = [one for one, all in zip(before.shape, fake.shape, strict=False) if one != all]
    if before.dim() != fake.dim() or not changes or set(changes) != {1} or before.requires_grad != fake.requires_grad:
        return {}
    known: dict[Node, Tensor] = {expand: before}
    for node in expand.graph.nodes:
        if any(operand in known for operand in node.all_input_nodes) and (value := _single(node, known)) is not None:
            known[node] = value
    del known[expand]
    return known


def _single(node: Node, known: dict[Node, Tensor]) -> Tensor | None:
    """The fake result for one copy; None if the operator has to see all copies."""
    name = _name(node)
    if name not in {*_ELEMENT_WISE, *_VIEWS, *_WORTH_IT} or may_write(node) or not is_static(node):
        return None
    fake = node.meta["example_value"]
    try:
        value = fake_result(node, fake.fake_mode, known)
        same = [d for d, (one, all) in enumerate(zip(value.shape, fake.shape, strict=True)) if one == all]
        if len(same) == fake.dim() or any(value.shape[d] != 1 for d in range(fake.dim()) if d not in same):
            return None
        if name == _SOFTMAX and _softmax_dim(node) % fake.dim() not in same:
            return None
        if name == _LAYER_NORM and not _is_normalised_in(node, same):
            return None
        if name == _LINEAR and (node.args[0] not in known or any(each in known for each in node.args[1:])):
            return None
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
        return None
    return value if value.dtype == fake.dtype else _cast(value, fake)


def _cast(value: Tensor, like: Tensor) -> Tensor:
    """A fake tensor in another one's type, which autocast chose."""
    with like.fake_mode, torch.no_grad():
        return value.to(like.dtype)


def _softmax_dim(node: Node) -> int:
    return node.kwargs["dim"] if "dim" in node.kwargs else node.args[1]


def _is_normalised_in(node: Node, dims: list[int]) -> bool:
    arguments = _LAYER_NORM_ARGUMENTS.bind(*node.args, **node.kwargs).arguments
    rank = node.meta["example_value"].dim()
    return all(d in dims for d in range(rank - len(arguments["normalized_shape"]), rank))


def _not_worth_a_copy(single: dict[Node, Tensor]) -> Node | None:
    """The last operator whose result would have to be copied, unless it saves computing and is contiguous."""
    for node in reversed(single):
        if _needs_a_copy(node, single) and not (
            _name(node) in _WORTH_IT and node.meta["example_value"].is_contiguous()
        ):
            return node
    return None


def _needs_a_copy(node: Node, single: dict[Node, Tensor]) -> bool:
    """True if one of the operator's readers can't read its expanded result, or would give other strides."""
    return not all(user in single or _takes_expanded(user, single) for user in node.users)


def _takes_expanded(user: Node, single: dict[Node, Tensor]) -> bool:
    if _name(user) not in _ELEMENT_WISE or not is_static(user):
        return False
    fake = user.meta["example_value"]
    operands = [node for node in user.all_input_nodes if node in single]
    try:
        with fake.fake_mode:
            expanded = {node: single[node].expand(node.meta["example_value"].shape) for node in operands}
        return fake_result(user, fake.fake_mode, expanded).stride() == fake.stride()
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
        return False


def _without(single: dict[Node, Tensor], node: Node) -> dict[Node, Tensor]:
    """The operators besides one and those that read it."""
    gone = {node}
    for each in single:
        if not gone.isdisjoint(each.all_input_nodes):
            gone.add(each)
    return {each: value for each, value in single.items() if each not in gone}


def _postpone(expand: Node, single: dict[Node, Tensor]) -> None:
    """Replace the operators by those of one copy, and expand what others read."""
    graph, instead = expand.graph, {expand: expand.args[0]}

    def added(node: Node, like: Node, value: Any) -> Node:
        node.meta = {**like.meta, "example_value": value}
        return node

    for node, value in single.items():
        fake = node.meta["example_value"]
        with graph.inserting_before(node):
            args, kwargs = map_arg((node.args, node.kwargs), lambda each: instead.get(each, each))
            instead[node] = added(graph.create_node(node.op, node.target, args, kwargs), node, value)
            others = [user for user in node.users if user not in single]
            if not others:
                continue
            with fake.fake_mode:
                expanded = value.expand(fake.shape)
            result = added(graph.call_method("expand", (instead[node], *fake.shape)), node, expanded)
            if _needs_a_copy(node, single):
                result = added(graph.call_method("contiguous", (result,)), node, fake)
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in single)  # noqa: B023
    for node in reversed(single):
        graph.erase_node(node)
    if not expand.users:
        graph.erase_node(expand)
