"""Finds convolutions and linear layers in a model, with what follows them, and fuses each such chain into one operator.

A model's forward is traced by torch.fx (trace.py), and its chains are found (chains.py). Where one ends, the traced
forward calls one function of calls.py with the chain's own modules; the modules stay where they are, so parameters,
names in the state dict, optimizers and checkpoints do not notice. Each call asks first whether the modules are as they
were (guard.py).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import operator
import types
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import fx, nn

from .. import nn as nn_of_ours
from ..runtime.arguments import check_module
from .calls import conv_act, conv_norm_act, layer_norm, layer_norm_2d, linear_act
from .chains import Chain, Chains, reason_to_leave
from .guard import Guard, Reads
from .trace import is_ours, traced


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

    def __init__(self, module: nn.Module, function: Callable | None = None, guard: Guard | None = None):
        self.module = module
        self.function = function  # of the module and the forward's arguments; None: to be made
        self.guard = guard

    def __call__(self, *args, **kwargs):
        if self.function is None:  # just unpickled, and now the module is whole
            del self.module.forward, self.module.extra_repr
            _fuse_forward(self.module, "", Fusion({}, {}))
            return self.module.forward(*args, **kwargs)
        is_compiling = torch.compiler.is_compiling()
        if self.guard.holds() and (not is_compiling or self.guard.holds_for_compiler()):
            return self.function(self.module, *args, **kwargs)
        if not is_compiling:
            warnings.warn(
                f"torch_reformer: {type(self.module).__name__} has other modules, hooks or settings than when fuse() "
                "saw it, so its own forward is called; call fuse() again to fuse it as it is now",
                stacklevel=2,
            )
        return type(self.module).forward(self.module, *args, **kwargs)

    @property
    def __code__(self) -> types.CodeType:  # torch.export asks for it
        return type(self.module).forward.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(types.MethodType(type(self.module).forward, self.module))

    def __reduce__(self):
        return type(self), (None,), {"module": self.module}

    def __deepcopy__(self, memo):
        memo[id(self)] = copied = type(self)(None, self.function)
        copied.module, copied.guard = copy.deepcopy((self.module, self.guard), memo)
        return copied


def _extra_repr(module: nn.Module) -> str:
    return ", ".join(filter(None, [type(module).extra_repr(module), "forward fused by torch_reformer"]))


def _undo(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(vars(module).get("forward"), FusedForward):
            del module.forward, module.extra_repr


def _inside(module: nn.Module, called: set[nn.Module]) -> Iterator[nn.Module]:
    """The module and those inside it, but for what is called as a whole."""
    yield module
    for child in module.children():
        if child not in called:
            yield from _inside(child, called)


def _fuse_forward(module: nn.Module, prefix: str, done: Fusion) -> tuple[fx.Graph | None, str]:
    """Fuses what a module's forward says itself. Returns its trace, or why there is none."""
    reads = Reads()
    graph, reason = traced(module, reads)
    if graph is None:
        return None, reason
    modules = dict(module.named_modules())
    before = collections.Counter(_called(graph))
    with reads:
        is_fused = _fuse_graph(module, graph, prefix, done)
    if is_fused:
        containers = list(_inside(module, {modules[name] for name in before}))
        gone = reads.traced + [modules[name] for name in before - collections.Counter(_called(graph))]
        function = fx.GraphModule(module, graph, type(module).__name__).__class__.forward
        module.forward = FusedForward(module, function, Guard(containers, gone, reads))
        module.extra_repr = functools.partial(_extra_repr, module)
    return graph, ""


def _called(graph: fx.Graph) -> list[str]:
    return [node.target for node in graph.nodes if node.op == "call_module"]


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
    if is_ours(module) or not any(isinstance(inner, (nn.Conv2d, nn.Linear)) for inner in module.modules()):
        return
    children, modules = dict(module.named_children()), dict(module.named_modules())
    graph, reason = _fuse_forward(module, prefix, done)
    if graph is not None:
        children = {name: modules[name] for name in _called(graph) if _may_be_fused_inside(modules[name])}
    elif children:
        done.left[name] = reason + "; what is inside it was looked at"
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

    Later changes (hooks, other modules, settings such as a padding mode, a forward of an instance's own) are noticed:
    then the module's own forward is called, with a warning, until they are taken back or fuse() is called again.

    Args:
        model: any module that torch.fx can trace; of others the parts that it can.
        channels_last: also converts the model's parameters to ``torch.channels_last``, which is most often faster; give
            it inputs of that memory format.

    Returns:
        what is fused, and a sentence for everything that was left. Left are modules with hooks (which would not be
        called), SyncBatchNorm (its statistics are of all processes), and what a trace would change: modules that ask
        whether they are in training, read globals or have optional arguments, inside which it looks further.
    """
    check_module("fuse", model)
    _undo(model)
    nn_of_ours.convert(model, channels_last)
    done = Fusion({}, {})
    _fuse(model, "", done)
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            done.left[name] = "its statistics are of all processes"
    return done
