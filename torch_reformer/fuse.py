"""Finds convolutions and linear layers in a model, with what follows them, and fuses each such chain into one operator.

A model's forward is traced by torch.fx. Where a chain ends, the traced forward calls one function of this file with the
chain's own modules; the modules stay where they are, so parameters, names in the state dict, optimizers and checkpoints
do not notice.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn

from . import fused
from . import nn as nn_of_ours
from .epilogue import ACTIVATIONS
from .problem import TORCH_DTYPES

# --- what the fused forward calls -------------------------------------------------------------------------------------


def _output_size(conv: nn.Conv2d, input: Tensor) -> tuple[int, ...]:
    sizes = [
        (input.shape[2 + d] + 2 * conv.padding[d] - conv.dilation[d] * (conv.kernel_size[d] - 1) - 1) // conv.stride[d]
        + 1
        for d in (0, 1)
    ]
    return input.shape[0], conv.out_channels, *sizes


def _fits(residual: Tensor | None, conv: nn.Conv2d, input: Tensor) -> bool:
    """Whether the sum has the size and data type of the convolution's result: PyTorch's might have others."""
    if residual is None:
        return True
    device = input.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
    return residual.dtype == dtype and residual.shape == torch.Size(_output_size(conv, input))


def conv_act(conv: nn.Conv2d, input: Tensor, activation: str, residual: Tensor | None = None) -> Tensor:
    """activation(conv(input) + residual), by the modules' own settings."""
    geometry = conv.stride, conv.padding, conv.dilation, conv.groups
    if _fits(residual, conv, input):
        return fused.conv2d_act(input, conv.weight, conv.bias, *geometry, activation=activation, residual=residual)
    result = fused.conv2d_act(input, conv.weight, conv.bias, *geometry, activation="none")
    return _separately(result + residual, activation)


def conv_norm_act(
    conv: nn.Conv2d, norm: nn.BatchNorm2d, input: Tensor, activation: str, residual: Tensor | None = None
) -> Tensor:
    """activation(norm(conv(input)) + residual)."""
    if _fits(residual, conv, input):
        return nn_of_ours.conv_norm_act(conv, norm, input, activation, residual)
    return _separately(nn_of_ours.conv_norm_act(conv, norm, input, "none") + residual, activation)


def linear_act(linear: nn.Linear, input: Tensor, activation: str, dropout: nn.Dropout | None = None) -> Tensor:
    """dropout(activation(linear(input)))."""
    rate, training = (dropout.p, dropout.training) if dropout is not None else (0.0, False)
    return fused.linear_act(input, linear.weight, linear.bias, activation=activation, dropout=rate, training=training)


def _separately(value: Tensor, activation: str) -> Tensor:
    return _IN_PYTORCH[activation](value)


_IN_PYTORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": nn.functional.relu,
    "relu6": nn.functional.relu6,
    "leaky_relu": nn.functional.leaky_relu,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "hardswish": nn.functional.hardswish,
    "hardsigmoid": nn.functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
assert _IN_PYTORCH.keys() == ACTIVATIONS.keys()


# --- what is found ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fusion:
    """What :func:`fuse` did."""

    fused: dict[str, str]  # for each convolution or linear layer, by name: what was fused into it
    left: dict[str, str]  # why the others were left, and modules whose forward could not be traced

    def __str__(self) -> str:
        lines = [f"fused {len(self.fused)}, left {len(self.left)}"]
        lines += [f"  {name}: {what}" for name, what in self.fused.items()]
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


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
_ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_IN_PLACE_ADDITIONS = {operator.iadd, "add_"}


def _reason_to_leave(module: nn.Module) -> str | None:
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
    return _hooks(module)


def _hooks(module: nn.Module) -> str | None:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "it has hooks, which would not be called" if any(getattr(module, name) for name in hooks) else None


@dataclasses.dataclass
class _Chain:
    """A convolution or linear layer, and the nodes after it that are one operator with it."""

    nodes: list[fx.Node]
    norm: fx.Node | None = None
    residual: fx.Node | None = None
    activation: str = "none"
    dropout: fx.Node | None = None

    @property
    def last(self) -> fx.Node:
        return self.nodes[-1]

    def shown(self) -> str:
        parts = ["batch norm"] if self.norm else []
        parts += ["addition"] if self.residual else []
        parts += [self.activation] if self.activation != "none" else []
        return ", ".join(parts + (["dropout"] if self.dropout else []))


class _Chains:
    """Of one traced forward."""

    def __init__(self, modules: dict[str, nn.Module]):
        self.modules = modules

    def module(self, node: fx.Node | None) -> nn.Module | None:
        return self.modules[node.target] if node is not None and node.op == "call_module" else None

    def _only_user(self, node: fx.Node) -> fx.Node | None:
        """The node that uses this one's value as its first argument, if nobody else does."""
        user = next(iter(node.users)) if len(node.users) == 1 else None
        return user if user is not None and user.op != "output" else None

    def of(self, first: fx.Node) -> _Chain:
        chain = _Chain([first])
        if isinstance(self.module(first), nn.Linear):
            self._take_activation(chain)
            self._take_dropout(chain)
            return chain
        user = self._only_user(first)
        norm = self.module(user)
        if type(norm) is nn.BatchNorm2d and not _hooks(norm):
            chain.norm = user
            chain.nodes.append(user)
        self._take_residual(chain)
        self._take_activation(chain)
        return chain

    def _take_residual(self, chain: _Chain) -> None:
        user = self._only_user(chain.last)
        if user is None or user.target not in _ADDITIONS or len(user.args) != 2 or user.kwargs:
            return
        ours = [argument is chain.last for argument in user.args]
        other = user.args[0] if ours[1] else user.args[1]
        if ours == [True, True] or not isinstance(other, fx.Node):
            return
        if user.target in _IN_PLACE_ADDITIONS and not ours[0] and len(other.users) > 1:
            return  # it changes a tensor that somebody else reads
        chain.residual = other
        chain.nodes.append(user)

    def _take_activation(self, chain: _Chain) -> None:
        user = self._only_user(chain.last)
        if user is None or not user.args or user.args[0] is not chain.last:
            return
        activation = _activation_of(user, self.modules)
        module = self.module(user)
        if activation is not None and not (module and _hooks(module)):
            chain.activation = activation
            chain.nodes.append(user)

    def _take_dropout(self, chain: _Chain) -> None:
        user = self._only_user(chain.last)
        module = self.module(user)
        if type(module) is nn.Dropout and not _hooks(module):
            chain.dropout = user
            chain.nodes.append(user)


# --- tracing ----------------------------------------------------------------------------------------------------------


class _Tracer(fx.Tracer):
    """Goes into modules whose forward is the same at every call: not those that ask whether they are in training, which
    a trace would fix, and not those with hooks."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        known = super().is_leaf_module(module, name) or isinstance(module, (nn.Conv2d, nn.Linear))
        return known or _asks_for_training(module) or _hooks(module) is not None


def _asks_for_training(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return code is None or "training" in code.co_names


def _traced(module: nn.Module) -> tuple[fx.Graph | None, str]:
    """The module's forward, or why it was not traced."""
    if _asks_for_training(module):
        return None, "its forward asks whether it is in training"
    for parameter in list(inspect.signature(type(module).forward).parameters.values())[1:]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty:
            return None, f"its forward has an argument that may be left out ({parameter.name})"
    try:
        return _Tracer().trace(module), ""
    except Exception as error:  # whatever a model's code does with a traced value
        return None, f"its forward could not be traced: {str(error).splitlines()[0] if str(error) else repr(error)}"


class FusedForward:
    """Stands for a module's forward. Copies and pickles as what it is made from: the module."""

    def __init__(self, module: nn.Module, graph: fx.Graph):
        self.module = module
        self.function = _function(module, graph)

    def __call__(self, *args, **kwargs):
        return self.function(self.module, *args, **kwargs)

    def __reduce__(self):
        return _unmade, (), {"module": self.module}

    def __setstate__(self, state):
        self.module = state["module"]


class _Unmade(FusedForward):
    """Just copied or unpickled, when its module may not be whole yet: made at the first call."""

    def __init__(self):
        pass

    def __call__(self, *args, **kwargs):
        graph, reason = _traced(self.module)
        if graph is None:
            raise RuntimeError(f"torch_reformer.fuse: {type(self.module).__name__} was fused, but now {reason}")
        _fuse_graph(self.module, graph, "", Fusion({}, {}))
        self.module.forward = FusedForward(self.module, graph)
        return self.module.forward(*args, **kwargs)


def _unmade() -> _Unmade:
    return _Unmade()


def _function(module: nn.Module, graph: fx.Graph) -> Callable:
    return fx.GraphModule(module, graph, type(module).__name__).__class__.forward


def _fuse_graph(module: nn.Module, graph: fx.Graph, prefix: str, done: Fusion) -> None:
    """Replaces the chains of a module's traced forward."""
    chains = _Chains(dict(module.named_modules()))
    for node in list(graph.nodes):
        first = chains.module(node)
        if not isinstance(first, (nn.Conv2d, nn.Linear)):
            continue
        name = prefix + node.target
        if reason := _reason_to_leave(first):
            done.left[name] = reason
            continue
        chain = chains.of(node)
        if len(chain.nodes) > 1:
            _replace(graph, chain, first)
            done.fused[name] = chain.shown()
        else:
            done.left[name] = "nothing follows it that could be fused"
    graph.lint()


def _replace(graph: fx.Graph, chain: _Chain, first: nn.Module) -> None:
    node = chain.nodes[0]
    with graph.inserting_before(chain.last):
        modules = [graph.get_attr(part.target) for part in (node, chain.norm) if part is not None]
        if isinstance(first, nn.Linear):
            dropout = graph.get_attr(chain.dropout.target) if chain.dropout else None
            new = graph.call_function(linear_act, (*modules, node.args[0], chain.activation, dropout))
        else:
            function = conv_norm_act if chain.norm else conv_act
            new = graph.call_function(function, (*modules, node.args[0], chain.activation, chain.residual))
    chain.last.replace_all_uses_with(new)
    for old in reversed(chain.nodes):
        graph.erase_node(old)


def _fuse(module: nn.Module, prefix: str, done: Fusion) -> None:
    if isinstance(module.forward, FusedForward) or not any(
        isinstance(inner, (nn.Conv2d, nn.Linear)) for inner in module.modules()
    ):
        return
    children = dict(module.named_children())
    graph, reason = _traced(module)
    if graph is None:
        if children:
            done.left[prefix.rstrip(".") or "(the model itself)"] = reason + "; what is inside it was looked at"
    else:
        modules = dict(module.named_modules())
        called = {node.target for node in graph.nodes if node.op == "call_module"}
        children = {name: modules[name] for name in called if not type(modules[name]).__module__.startswith("torch.nn")}
        children = {name: inner for name, inner in children.items() if not isinstance(inner, (nn.Conv2d, nn.Linear))}
        before = len(done.fused)
        _fuse_graph(module, graph, prefix, done)
        if len(done.fused) > before:
            module.forward = FusedForward(module, graph)
    for name, inner in children.items():
        _fuse(inner, f"{prefix}{name}.", done)


def fuse(model: nn.Module, channels_last: bool = False) -> Fusion:
    """Fuses what follows the convolutions and linear layers of a model into them, in place, and swaps the remaining
    convolutions as :func:`torch_reformer.convert` does.

    Found are Conv2d, BatchNorm2d, an addition, an activation, in this order, each but the first optional; and Linear,
    an activation, Dropout. The modules stay, so the state dict, optimizers and checkpoints do not notice. Works in
    training and evaluation, with autocast, DistributedDataParallel, checkpointing and torch.compile.

    Args:
        model: any module that torch.fx can trace; of others the parts that it can.
        channels_last: also converts the model's parameters to ``torch.channels_last``, which is most often faster; give
            it inputs of that memory format.

    Returns:
        what was fused, and a sentence for everything that was left. Left are modules with hooks (which would not be
        called), SyncBatchNorm (its statistics are of all processes), and what a trace would change: modules that ask
        whether they are in training and those with optional arguments, inside which it looks further.
    """
    done = Fusion({}, {})
    _fuse(model, "", done)
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            done.left[name] = "its statistics are of all processes"
    nn_of_ours.convert(model, channels_last)
    return done
