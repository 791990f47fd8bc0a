"""Compute of an expanded tensor's one copy what would be equal for all copies, and expand the result.

Models expand learned queries, tokens and positions to a batch, and then compute: ConViT's scores of positions are a
layer and a softmax of so many equal images. Autograd then sums the gradient over the copies before it goes back through
the layers, so that the backward has one copy, too. Each element of the result has the operands that it had; sums of
gradients are rounded at another place.

Only operators go before an expansion that compute each copy alone and alike, of it and of tensors that are equal for
all copies. Drawing random numbers is none of them. The result of a layer that is returned, or read by an operator that
is not element-wise, is copied to its full size. Gradients in fp16 are not summed before a layer: they could overflow.
"""

from __future__ import annotations

import heapq
import inspect
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ...runtime.dtypes import NARROW
from .attention_calls import is_static
from .fake_results import fake_result
from .modes import is_mode
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
OneCopy = dict[Node, Tensor]  # operators that may go before an expansion, and their fake results for one copy


def postpone_expands(module: GraphModule) -> None:
    """Change Dynamo's graph: operators on expanded tensors work on the tensors before the expansion."""
    graph, is_changed = module.graph, False
    writers = [node for node in graph.nodes if node.op != "output" and may_write(node)]  # results are copied
    written = {memory_of(node) for writer in writers for node in writer.all_input_nodes}
    for expand in [node for node in graph.nodes if _name(node) in _EXPANSIONS]:
        of_one = _without_modes(expand, _of_one_copy(expand))
        while (node := _not_worth_a_copy(of_one)) is not None:
            of_one = _without(of_one, node)
        memories = {memory_of(node) for node in (expand, *of_one, *expand.args[:1])}
        if any(_name(node) in _WORTH_IT for node in of_one) and memories.isdisjoint(written):
            _postpone(expand, of_one)
            is_changed = True
    if is_changed:
        module.recompile()


def _name(node: Node) -> str:
    """The name of a method, or of a function of PyTorch or operator of Python; none for others."""
    if node.op == "call_method":
        return node.target
    return getattr(node.target, "__name__", "") if is_known(node) or node.target is F.linear else ""


def _of_one_copy(expand: Node) -> OneCopy:
    """The operators behind an expansion that may go before it, in the graph's order."""
    source = expand.args[0] if expand.args else None
    if not is_static(expand) or not is_static(source):
        return {}
    before, fake = source.meta["example_value"], expand.meta["example_value"]
    changes = [one for one, full in zip(before.shape, fake.shape, strict=False) if one != full]
    if before.dim() != fake.dim() or not changes or set(changes) != {1} or not fake.numel():
        return {}
    known: OneCopy = {expand: before}
    seen = set(expand.users)
    todo = sorted(seen)  # in the graph's order
    while todo:
        node = heapq.heappop(todo)
        if (value := _result(node, known)) is not None:
            known[node] = value
            for user in node.users.keys() - seen:
                seen.add(user)
                heapq.heappush(todo, user)
    del known[expand]
    return known


def _without_modes(expand: Node, of_one: OneCopy) -> OneCopy:
    """Nothing if an operator runs in another mode than the expansion: autograd would follow other tensors."""
    if of_one:
        nodes = itertools.dropwhile(lambda node: node is not expand, expand.graph.nodes)
        last = next(reversed(of_one))
        if any(is_mode(node) for node in itertools.takewhile(lambda node: node is not last, nodes)):
            return {}
    return of_one


def _result(node: Node, known: OneCopy) -> Tensor | None:
    """The fake result for one copy; None if the operator has to see all copies."""
    name = _name(node)
    if name not in {*_ELEMENT_WISE, *_VIEWS, *_WORTH_IT} or may_write(node) or not is_static(node):
        return None
    fake = node.meta["example_value"]
    if fake.dtype == torch.float16 and fake.requires_grad:
        return None
    try:
        with torch.autocast(fake.device.type, fake.dtype, enabled=fake.dtype in NARROW):  # a layer casts its weight
            value = fake_result(node, fake.fake_mode, known)
        same = [d for d, (one, full) in enumerate(zip(value.shape, fake.shape, strict=True)) if one == full]
        if len(same) == fake.dim() or any(value.shape[d] != 1 for d in range(fake.dim()) if d not in same):
            return None
        if name == _SOFTMAX and _softmax_dim(node) % fake.dim() not in same:
            return None
        if name == _LAYER_NORM and not _is_normalised_in(node, same):
            return None
        if name == _LINEAR and [each for each in node.all_input_nodes if each in known] != [*node.args[:1]]:
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


def _not_worth_a_copy(of_one: OneCopy) -> Node | None:
    """The last operator whose result would have to be copied, unless it is a layer and contiguous."""
    for node in reversed(of_one):
        is_layer = _name(node) == _LINEAR and node.meta["example_value"].is_contiguous()
        if not is_layer and _needs_a_copy(node, of_one):
            return node
    return None


def _needs_a_copy(node: Node, of_one: OneCopy) -> bool:
    """True if one of the operator's readers can't read its expanded result, or would give other strides."""
    return not all(user in of_one or _takes_expanded(user, of_one) for user in node.users)


def _takes_expanded(user: Node, of_one: OneCopy) -> bool:
    if _name(user) not in _ELEMENT_WISE or not is_static(user):
        return False
    fake = user.meta["example_value"]
    operands = [node for node in user.all_input_nodes if node in of_one]
    try:
        with fake.fake_mode:
            expanded = {node: of_one[node].expand(node.meta["example_value"].shape) for node in operands}
        return fake_result(user, fake.fake_mode, expanded).stride() == fake.stride()
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
        return False


def _without(of_one: OneCopy, node: Node) -> OneCopy:
    """The operators besides one and those that read it."""
    gone = {node}
    for each in of_one:
        if not gone.isdisjoint(each.all_input_nodes):
            gone.add(each)
    return {each: value for each, value in of_one.items() if each not in gone}


def _postpone(expand: Node, of_one: OneCopy) -> None:
    """Replace the operators by those of one copy, and expand what others read."""
    graph, instead = expand.graph, {expand: expand.args[0]}

    def added(node: Node, like: Node, value: Tensor) -> Node:
        fake = value.detach().requires_grad_(like.meta["example_value"].requires_grad)
        node.meta = {**like.meta, "example_value": fake}
        return node

    for node, value in of_one.items():
        fake = node.meta["example_value"]
        with graph.inserting_before(node):
            args, kwargs = map_arg((node.args, node.kwargs), lambda each: instead.get(each, each))
            instead[node] = added(graph.create_node(node.op, node.target, args, kwargs), node, value)
            if all(user in of_one for user in node.users):
                continue
            with fake.fake_mode:
                expanded = value.expand(fake.shape)
            result = added(graph.call_method("expand", (instead[node], *fake.shape)), node, expanded)
            if _needs_a_copy(node, of_one):
                result = added(graph.call_method("contiguous", (result,)), node, fake)
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in of_one)
    for node in reversed(of_one):
        graph.erase_node(node)
    if not expand.users:
        graph.erase_node(expand)
