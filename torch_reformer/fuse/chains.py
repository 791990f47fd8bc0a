"""What of a traced forward is one operator: a convolution or linear layer, and the nodes that follow it."""

from __future__ import annotations

import dataclasses
import operator

import torch
from torch import fx, nn

from .. import nn as nn_of_ours
from ..problem import TORCH_DTYPES
from .calls import conv_act, conv_norm_act, is_row_drop, is_scale_of, linear_act, reason_to_call
from .trace import IN_PLACE_OPERATORS


def _activation_of(node: fx.Node, modules: dict[str, nn.Module]) -> str | None:
    """The name of the activation that a node computes of its first argument, or None."""
    if node.op == "call_module":
        module = modules[node.target]
        if type(module) is nn.LeakyReLU:
            return "leaky_relu" if module.negative_slope == 0.01 else None
        if type(module) is nn.GELU:
            return "gelu_tanh" if module.approximate == "tanh" else "gelu"
        return _MODULES.get(type(module))
    others = {**dict(enumerate(node.args[1:], 1)), **node.kwargs}
    others.pop("inplace", None)
    if node.op == "call_function" and node.target is nn.functional.gelu:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(others.get("approximate", "none"))
    if any(type(value) is not bool for value in others.values()):  # a slope, say; inplace may come by its place
        return None
    return _FUNCTIONS.get(node.target) if node.op == "call_function" else _METHODS.get(node.target)


_MODULES = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
}
_FUNCTIONS = {
    torch.relu: "relu",
    torch.relu_: "relu",
    nn.functional.relu: "relu",
    nn.functional.relu_: "relu",
    nn.functional.relu6: "relu6",
    nn.functional.silu: "silu",
    nn.functional.hardswish: "hardswish",
    nn.functional.hardsigmoid: "hardsigmoid",
    nn.functional.leaky_relu: "leaky_relu",
    torch.sigmoid: "sigmoid",
    nn.functional.sigmoid: "sigmoid",
    torch.tanh: "tanh",
    nn.functional.tanh: "tanh",
}
_METHODS = {
    "relu": "relu",
    "relu_": "relu",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "tanh": "tanh",
    "tanh_": "tanh",
}


TO_IMAGES, FROM_IMAGES = (0, 3, 1, 2), (0, 2, 3, 1)  # [N, H, W, C] becomes [N, C, H, W], and the other way round


def _permuted(node: fx.Node | None, order: tuple[int, ...]) -> fx.Node | None:
    """What a node permutes in this order, or None."""
    if node is None or (node.op, node.target) not in (("call_function", torch.permute), ("call_method", "permute")):
        return None
    given, *dims = node.args or (None,)
    return given if not node.kwargs and dims in ([*order], [[*order]], [order]) else None


_IN_PLACE_ADDITIONS = {operator.iadd, "add_"}
_ADDITIONS = {operator.add, torch.add, "add"} | _IN_PLACE_ADDITIONS
_MULTIPLICATIONS = {operator.mul, torch.mul, "mul"}


def reason_to_leave(module: nn.Module) -> str | None:
    """Why a convolution or linear layer cannot be computed from its parameters and settings alone."""
    if type(module) not in (nn.Conv2d, nn_of_ours.Conv2d, nn.Linear):
        return f"it is a {type(module).__name__}, whose own behaviour would be lost"
    if isinstance(module, nn.Conv2d):
        if module.padding_mode != "zeros":
            return f"its padding mode is {module.padding_mode!r}"
        if isinstance(module.padding, str):
            return f"its padding is {module.padding!r}"
    if isinstance(module.weight, nn.parameter.UninitializedTensorMixin):
        return "its weight is not initialised yet"
    if module.weight.dtype not in TORCH_DTYPES.values():
        return f"its data type {module.weight.dtype} is not supported"
    return reason_to_call(module)


@dataclasses.dataclass
class Chain:
    """A convolution or linear layer, and the nodes after it that are one operator with it."""

    nodes: list[fx.Node]
    norm: fx.Node | None = None
    residual: fx.Node | None = None
    in_place: bool = False  # the addition
    activation: str = "none"
    dropout: fx.Node | None = None
    to_images: bool = False  # permuted from [N, H, W, C] to [N, C, H, W], after the dropout
    scale: fx.Node | None = None
    drop: fx.Node | None = None
    parts: list[str] = dataclasses.field(default_factory=list)  # names of what was found

    @property
    def last(self) -> fx.Node:
        return self.nodes[-1]

    def take(self, node: fx.Node, part: str) -> None:
        self.nodes.append(node)
        self.parts.append(part)


def _calls_norm(node: fx.Node, name: str) -> bool:
    """Whether a node updates the running statistics of this batch norm, whose order counts: by itself or in a chain."""
    if node.target is conv_norm_act:
        return node.args[1].target == name
    return node.op == "call_module" and node.target == name


class Chains:
    """Finds the chains of one traced forward."""

    def __init__(self, modules: dict[str, nn.Module]):
        self.modules = modules

    def module(self, node: fx.Node | None) -> nn.Module | None:
        return self.modules[node.target] if node is not None and node.op == "call_module" else None

    def _next(self, chain: Chain) -> fx.Node | None:
        """The node that uses the chain's value, if nobody else does and the chain can be computed where it stands."""
        user = next(iter(chain.last.users)) if len(chain.last.users) == 1 else None
        if user is None or user.op == "output":
            return None
        norm = chain.norm.target if chain.norm else None
        node = chain.last.next
        while node is not user:
            if (norm is not None and _calls_norm(node, norm)) or self._may_change_what_is_read(node, chain):
                return None
            node = node.next
        return user

    def _may_change_what_is_read(self, node: fx.Node, chain: Chain) -> bool:
        """Whether a node changes a tensor in place, other than one that the chain surely does not read."""
        if not self._is_in_place(node):
            return False
        while isinstance(node, fx.Node) and self._is_in_place(node):
            node = node.args[0] if node.args else None
        if not isinstance(node, fx.Node) or not self._is_new(node):
            return True
        read, nodes = set(), [chain.nodes[0]]
        while nodes:
            read.add(last := nodes.pop())
            nodes += [before for before in last.all_input_nodes if before not in read]
        return node in read

    def _is_new(self, node: fx.Node) -> bool:
        """Whether a node's value shares memory with no other."""
        computes = isinstance(self.module(node), (nn.Conv2d, nn.Linear, nn.BatchNorm2d))
        return computes or node.target in (conv_act, conv_norm_act, linear_act)

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return getattr(self.modules[node.target], "inplace", False) is True
        if node.op not in ("call_function", "call_method"):
            return False
        name = node.target if isinstance(node.target, str) else node.target.__name__
        by_name = (name.endswith("_") and not name.endswith("__")) or node.target in IN_PLACE_OPERATORS
        return (
            by_name
            or "out" in node.kwargs
            or node.kwargs.get("inplace") is True
            or any(a is True for a in node.args[1:])
        )

    def of(self, first: fx.Node) -> Chain:
        chain = Chain([first])
        if isinstance(self.module(first), nn.Linear):
            self._take_activation(chain)
            self._take_dropout(chain)
            self._take_tail(chain)
            return chain
        user = self._next(chain)
        norm = self.module(user)
        if type(norm) is nn.BatchNorm2d and not reason_to_call(norm):
            chain.norm = user
            chain.take(user, "batch norm")
        self._take_residual(chain)
        self._take_activation(chain)
        return chain

    def layer_norm(self, node: fx.Node) -> list[fx.Node]:
        """The nodes of a layer norm whose result a node is: of channels that come last, or, between a permutation and
        one back, of images. Else nothing; nor if its input is changed in place, of which PyTorch may keep a copy."""
        module, nodes = self.module(node), [node]
        if module is not None:
            if (
                type(module) is not nn.LayerNorm
                or len(module.normalized_shape) != 1
                or reason_to_call(module)
                or not node.args
            ):
                return []
        else:
            norm = _permuted(node, TO_IMAGES)
            if norm is None or (norm.op, norm.target) != ("call_function", nn.functional.layer_norm) or not norm.args:
                return []
            nodes = [norm.args[0], norm, node]
            if _permuted(nodes[0], FROM_IMAGES) is None or any([*nodes[i].users] != [nodes[i + 1]] for i in (0, 1)):
                return []
        input = nodes[0].args[0]
        changes = any(self._is_in_place(user) and user.args and user.args[0] is input for user in input.users)
        return [] if changes else nodes

    def name_of_layer_norm(self, nodes: list[fx.Node]) -> str:
        """The name of its module; for a call of the function, that of its weight's module."""
        norm = nodes[len(nodes) // 2]
        if norm.op == "call_module":
            return norm.target
        weight = dict(enumerate(norm.args)).get(2, norm.kwargs.get("weight"))
        is_known = isinstance(weight, fx.Node) and weight.op == "get_attr"
        return weight.target.rpartition(".")[0] if is_known else norm.name

    def only_reader(self, node: fx.Node) -> fx.Node | None:
        """The convolution or linear layer that reads a node's value, if nothing else does."""
        reader = next(iter(node.users)) if len(node.users) == 1 else None
        module = self.module(reader)
        return reader if isinstance(module, (nn.Conv2d, nn.Linear)) and reason_to_leave(module) is None else None

    def readers(self, chain: Chain) -> list[fx.Node]:
        """What reads a chain's result, if there is to be a tensor for each: of batch norm's, so that gradients are
        added up in its backward, and of the sum after a linear layer, so that each has the data type it wants.
        Nothing where somebody might change it, or a view of it, in place."""

        def only_reads(user: fx.Node) -> bool:
            if self.is_cast_by_autocast(user) or user.target in (conv_act, linear_act):
                return True
            adds = user.op in ("call_function", "call_method") and user.target in _ADDITIONS
            changes = "out" in user.kwargs or (user.target in _IN_PLACE_ADDITIONS and user.args[0] is chain.last)
            return adds and not changes

        users = list(chain.last.users)
        if len(users) < 2 or not all(only_reads(user) for user in users):
            return []
        if isinstance(self.module(chain.nodes[0]), nn.Linear):
            casts = [self.is_cast_by_autocast(user) for user in users]
            return users if chain.residual is not None and True in casts and False in casts else []
        return users if chain.norm is not None else []

    def is_cast_by_autocast(self, node: fx.Node) -> bool:
        """Whether it is a convolution or linear layer, which reads its input in autocast's data type."""
        return isinstance(self.module(node), (nn.Conv2d, nn.Linear))

    def _take_residual(self, chain: Chain) -> None:
        user = self._next(chain)
        if user is None or user.op not in ("call_function", "call_method") or user.target not in _ADDITIONS:
            return
        if len(user.args) != 2 or user.kwargs:
            return
        ours = [argument is chain.last for argument in user.args]
        other = user.args[0] if ours[1] else user.args[1]
        if ours == [True, True] or not isinstance(other, fx.Node) or other.op == "get_attr":
            return  # parameters and buffers are hardly of the result's size
        chain.in_place = user.target in _IN_PLACE_ADDITIONS
        if chain.in_place and not ours[0]:
            return  # it changes a tensor that somebody else may read
        chain.residual = other
        chain.take(user, "addition")

    def _take_activation(self, chain: Chain) -> None:
        user = self._next(chain)
        if user is None or not user.args or user.args[0] is not chain.last:
            return
        activation = _activation_of(user, self.modules)
        module = self.module(user)
        if activation is not None and not (module and reason_to_call(module)):
            chain.activation = activation
            chain.take(user, activation)

    def _take_dropout(self, chain: Chain) -> None:
        user = self._next(chain)
        module = self.module(user)
        if type(module) is nn.Dropout and not reason_to_call(module):
            chain.dropout = user
            chain.take(user, "dropout")

    def _take_tail(self, chain: Chain) -> None:
        """Adds the end of a channels-last block, of images or not: layer scale, stochastic depth, residual."""
        user = self._next(chain)
        if _permuted(user, TO_IMAGES) is chain.last:
            chain.nodes.append(user)
            chain.to_images = True
        parts = len(chain.parts)
        self._take_scale(chain)
        user = self._next(chain)
        module = self.module(user)
        if module is not None and is_row_drop(module) and not reason_to_call(module) and user.args == (chain.last,):
            chain.drop = user
            chain.take(user, "stochastic depth")
        self._take_residual(chain)
        if chain.to_images and len(chain.parts) == parts:  # nothing follows the permutation
            chain.nodes.pop()
            chain.to_images = False

    def _take_scale(self, chain: Chain) -> None:
        user = self._next(chain)
        if user is None or user.op not in ("call_function", "call_method") or user.target not in _MULTIPLICATIONS:
            return
        others = [argument for argument in user.args if argument is not chain.last]
        if len(user.args) != 2 or user.kwargs or len(others) != 1 or not isinstance(others[0], fx.Node):
            return
        scale = self._parameter(others[0])
        if scale is not None and is_scale_of(scale, self.module(chain.nodes[0]), chain.to_images):
            chain.scale = others[0]
            chain.take(user, "layer scale")

    def _parameter(self, node: fx.Node) -> nn.Parameter | None:
        if node.op != "get_attr":
            return None
        found = operator.attrgetter(node.target)(self.modules[""])
        return found if isinstance(found, nn.Parameter) else None
