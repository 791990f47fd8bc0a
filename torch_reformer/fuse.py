"""Finds convolutions and linear layers in a model, with what follows them, and fuses each such chain into one operator.

A model's forward is traced by torch.fx (_fuse_trace.py), and its chains are found (_fuse_chains.py). Where one ends,
the traced forward calls one function of _fuse_calls.py with the chain's own modules; the modules stay where they are,
so parameters, names in the state dict, optimizers and checkpoints do not notice.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import types
from collections.abc import Callable

from torch import fx, nn

from . import nn as nn_of_ours
from ._fuse_calls import conv_act, conv_norm_act, layer_norm, layer_norm_2d, linear_act
from ._fuse_chains import Chain, Chains, reason_to_leave
from ._fuse_trace import is_ours, traced


@dataclasses.dataclass
class Fusion:
    """What :func:`fuse` did."""

    fused: dict[str, str]  # for each convolution or linear layer, by name: what was fused into it; and layer norms
    left: dict[str, str]  # why the others were left, and modules whose forward could not be traced

    def __str__(self) -> str:
        lines = [f"fused {len(self.fused)}, left {len(self.left)}"]
        lines += [f"  {name}: {what}" for name, what in self.fused.items()]
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


# --- the forward ------------------------------------------------------------------------------------------------------


class FusedForward:
    """In place of a module's forward. Copies as it is; pickles as what it is made from, the module."""

    def __init__(self, module: nn.Module, function: Callable):
        self.module = module
        self.function = function  # of the module and the forward's arguments

    def __call__(self, *args, **kwargs):
        return self.function(self.module, *args, **kwargs)

    @property
    def __code__(self) -> types.CodeType:  # torch.export asks for it
        return type(self.module).forward.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(type(self.module).forward, self.module))

    def __deepcopy__(self, memo):
        memo[id(self)] = copied = type(self)(None, self.function)
        copied.module = copy.deepcopy(self.module, memo)
        return copied

    def __reduce__(self):
        return _Unmade, (), {"module": self.module}

    def __setstate__(self, state):
        self.module = state["module"]


class _Unmade(FusedForward):
    """Just unpickled, when its module may not be whole yet: made at the first call."""

    def __init__(self, module=None, function=None):
        super().__init__(module, function)

    def __call__(self, *args, **kwargs):
        del self.module.forward
        graph, reason = traced(self.module)
        if graph is None:
            self.module.forward = self
            raise RuntimeError(f"torch_reformer.fuse: {type(self.module).__name__} was fused, but now {reason}")
        _fuse_graph(self.module, graph, "", Fusion({}, {}))
        self.module.forward = FusedForward(self.module, _function(self.module, graph))
        return self.module.forward(*args, **kwargs)


def _function(module: nn.Module, graph: fx.Graph) -> Callable:
    return fx.GraphModule(module, graph, type(module).__name__).__class__.forward


def _fuse_graph(module: nn.Module, graph: fx.Graph, prefix: str, done: Fusion) -> bool:
    """Replaces the chains and layer norms of a module's traced forward. Returns whether there were any."""
    chains = Chains(dict(module.named_modules()))
    before = len(done.fused)
    normalised = _replace_layer_norms(graph, chains, prefix, done)
    for node in list(graph.nodes):
        first = chains.module(node)
        if not isinstance(first, (nn.Conv2d, nn.Linear)):
            continue
        name = prefix + node.target
        if reason := reason_to_leave(first):
            done.left[name] = reason
            continue
        chain = chains.of(node)
        parts = ["layer norm before it"] * (node in normalised) + chain.parts
        if len(chain.nodes) > 1:
            _replace(graph, chains, chain)
        if parts:
            done.fused[name] = ", ".join(parts)
        else:
            done.left[name] = "nothing follows it that could be fused"
    graph.lint()
    return len(done.fused) > before


def _input_of(node: fx.Node) -> fx.Node:
    return node.args[0] if node.args else node.kwargs["input"]


def _replace_layer_norms(graph: fx.Graph, chains: Chains, prefix: str, done: Fusion) -> list[fx.Node]:
    """Returns the convolutions and linear layers that alone read one."""
    readers = []
    for node in list(graph.nodes):
        nodes = chains.layer_norm(node)
        if not nodes:
            continue
        if reader := chains.only_reader(node):
            readers.append(reader)
        else:
            done.fused[prefix + chains.name_of_layer_norm(nodes)] = "a kernel of its own on GPUs"
        with graph.inserting_before(nodes[len(nodes) // 2]):  # nothing may change its input before it is read
            of_reader = graph.get_attr(reader.target) if reader else None
            if len(nodes) == 1:
                new = graph.call_function(layer_norm, (graph.get_attr(node.target), of_reader, _input_of(node)))
            else:
                before, norm, _ = nodes
                arguments = of_reader, before.args[0], *norm.args[1:]
                new = graph.call_function(layer_norm_2d, arguments, norm.kwargs)
        node.replace_all_uses_with(new)
        for old in reversed(nodes):
            graph.erase_node(old)
    return readers


def _replace(graph: fx.Graph, chains: Chains, chain: Chain) -> None:
    node, readers = chain.nodes[0], chains.readers(chain)
    input = _input_of(node)
    with graph.inserting_before(chain.last):
        modules = [graph.get_attr(part.target) for part in (node, chain.norm) if part is not None]
        if isinstance(chains.module(node), nn.Linear):
            dropout = graph.get_attr(chain.dropout.target) if chain.dropout else None
            options = {
                "to_images": chain.to_images,
                "scale": chain.scale,
                "drop": graph.get_attr(chain.drop.target) if chain.drop else None,
                "residual": chain.residual,
                "in_place": chain.in_place,
                "readers": tuple(
                    graph.get_attr(reader.target) if chains.is_cast_by_autocast(reader) else None for reader in readers
                ),
            }
            options = {name: value for name, value in options.items() if value}
            new = graph.call_function(linear_act, (*modules, input, chain.activation, dropout), options)
        else:
            function = conv_norm_act if chain.norm else conv_act
            arguments = (chain.activation, chain.residual, chain.in_place) if chain.residual else (chain.activation,)
            options = {"uses": len(readers)} if readers else {}
            new = graph.call_function(function, (*modules, input, *arguments), options)
        for i, reader in enumerate(readers):
            reader.replace_input_with(chain.last, graph.call_function(operator.getitem, (new, i)))
    chain.last.replace_all_uses_with(new)
    for old in reversed(chain.nodes):
        graph.erase_node(old)


def _fuse(module: nn.Module, prefix: str, done: Fusion) -> None:
    name = prefix.rstrip(".") or "(the model itself)"
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        done.left[name] = reason_to_leave(module) or "nothing is known of what follows it"
        return
    if (
        isinstance(vars(module).get("forward"), FusedForward)
        or is_ours(module)
        or not any(isinstance(inner, (nn.Conv2d, nn.Linear)) for inner in module.modules())
    ):
        return
    children = dict(module.named_children())
    graph, reason = traced(module)
    if graph is None:
        if children:
            done.left[name] = reason + "; what is inside it was looked at"
    else:
        modules = dict(module.named_modules())
        called = dict.fromkeys(node.target for node in graph.nodes if node.op == "call_module")
        children = {name: modules[name] for name in called if _may_be_fused_inside(modules[name])}
        if _fuse_graph(module, graph, prefix, done):
            module.forward = FusedForward(module, _function(module, graph))
    for name, inner in children.items():
        _fuse(inner, f"{prefix}{name}.", done)


def _may_be_fused_inside(module: nn.Module) -> bool:
    is_pytorchs = type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)
    return not is_pytorchs and not isinstance(module, (nn.Conv2d, nn.Linear))


def fuse(model: nn.Module, channels_last: bool = False) -> Fusion:
    """Fuses what follows the convolutions and linear layers of a model into them, in place, and swaps the remaining
    convolutions as :func:`torch_reformer.convert` does.

    Found are Conv2d, BatchNorm2d, an addition, an activation, in this order, each but the first optional; and Linear,
    an activation, Dropout, a permutation from [N, H, W, C] to [N, C, H, W], the product with a parameter of C elements
    (layer scale), torchvision's StochasticDepth of rows, an addition. LayerNorm over the last dimension, or over the
    channels of images, is a kernel of its own on GPUs, and under autocast gives a convolution or linear layer that
    reads it the data type to which PyTorch would round its result. The modules stay, so the state dict, optimizers and
    checkpoints do not notice. Works in training and evaluation, with autocast, DistributedDataParallel, checkpointing
    and torch.compile.

    Modules that a fused forward goes through are no longer called themselves: register hooks on them, wrap them (FSDP,
    activation checkpointing) or exchange them before. Hooks on the convolutions, norms and linear layers themselves,
    and others put in their place, are noticed later too.

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
