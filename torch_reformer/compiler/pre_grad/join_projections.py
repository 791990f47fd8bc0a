"""Compute an attention's projections of one tensor, as queries, keys and values often are, by one product.

Under autocast a plan casts all parameters into one buffer, where those of one product lie side by side for nothing
(passes/cast_parts.py, passes/pack_casts.py). One product of many columns fills a GPU better than several of few,
forward and for the gradients of weights, and the input's gradient is one product instead of a sum of several. Models of
transformers, unlike those of timm, have separate modules for them.

Layers whose results element-wise operations read, as a gated MLP's, stay apart: a product's own kernel computes these.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ..ir.custom_ops import packed_starts
from .attention_calls import attention_calls, is_static
from .modes import is_mode
from .writes import may_write

_FARTHEST = 100  # nodes between projections and attention
_DEVICES = {"cuda"}  # whose products gain by it


def join_projections(module: GraphModule) -> None:
    """Change Dynamo's graph: linear layers on GPUs whose parameters autocast casts, which read one tensor and lead to
    the operands of one attention, become one layer, whose result is split."""
    places = {node: place for place, node in enumerate(module.graph.nodes)}
    joined: set[Node] = set()
    for arguments in attention_calls(module.graph).values():
        operands = [arguments.get(name) for name in ("query", "key", "value")]
        kinds: dict[tuple, list[Node]] = {}
        for layer in _layers_before(operands):
            if layer not in joined and (kind := _kind(layer)) is not None:
                kinds.setdefault(kind, []).append(layer)
        for layers in kinds.values():
            layers.sort(key=places.__getitem__)
            if len(layers) > 1 and _lie_side_by_side(layers) and _can_be_split(layers):
                _join(layers)
                joined |= {*layers}
    if joined:
        module.recompile()


def _layers_before(operands: list[Any]) -> list[Node]:
    """Linear layers from which the operands follow without another one."""
    layers, seen, todo = [], set(), [each for each in operands if isinstance(each, Node)]
    while todo and len(seen) < _FARTHEST:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.target is F.linear:
            layers.append(node)
        elif node.op in ("call_function", "call_method"):
            todo += node.all_input_nodes
    return layers


def _kind(layer: Node) -> tuple | None:
    """What layers have in common that can be one; None for a layer that can't be joined."""
    input, weight, bias = (*layer.args, None, None)[:3]
    if layer.kwargs or not all(is_static(each) for each in (layer, input, weight)):
        return None
    result, of_weight = layer.meta["example_value"], weight.meta["example_value"]
    is_cast = of_weight.dtype == torch.float32 and result.dtype in (torch.bfloat16, torch.float16)
    if not is_cast or result.device.type not in _DEVICES or not _is_parameter(weight):
        return None
    if bias is not None and not _is_parameter(bias):
        return None
    return input, of_weight.shape[1], bias is not None, of_weight.requires_grad, result.dtype


def _is_parameter(node: Node) -> bool:
    return node.op == "placeholder" and is_static(node) and node.meta["example_value"].is_contiguous()


def _lie_side_by_side(layers: list[Node]) -> bool:
    """True if there are no gaps between the layers' weights where these are packed. Biases may be copied."""
    counts = [layer.args[1].meta["example_value"].numel() for layer in layers]
    return packed_starts(counts)[-1] == sum(counts)


def _can_be_split(layers: list[Node]) -> bool:
    """True if all that views the results of layers, given in the graph's order, can view slices with gaps between their
    rows, none is a result of the graph, and nothing writes to them, or to anything or changes modes between them."""
    attentions = attention_calls(layers[0].graph)  # whose results are tensors of their own
    changed: dict[Node, Any] = {}
    width = sum(layer.meta["example_value"].shape[-1] for layer in layers)
    for layer in layers:
        fake = layer.meta["example_value"]
        with fake.fake_mode, torch.no_grad():
            changed[layer] = fake.new_empty((*fake.shape[:-1], width))[..., : fake.shape[-1]]
    left = set(layers)
    for node in itertools.dropwhile(lambda node: node is not layers[0], layers[0].graph.nodes):
        left.discard(node)
        if node in changed:
            continue
        if left and (is_mode(node) or may_write(node)):
            return False
        if node in attentions or changed.keys().isdisjoint(node.all_input_nodes):
            continue
        if node.op == "output" or may_write(node):
            return False
        try:
            value = _again(node, changed)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
            return False
        if _memories(value) & {memory for each in changed.values() for memory in _memories(each)}:
            changed[node] = value
    return True


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    return [value] if isinstance(value, Tensor) else []


def _memories(value: Any) -> set[int]:
    """Identities of the storages of fake tensors."""
    return {each.untyped_storage()._cdata for each in _tensors(value)}


def _again(node: Node, changed: dict[Node, Any]) -> Any:
    """The node's fake result, computed again. changed: operands' values that differ from those in the graph."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda each: changed.get(each, each.meta["example_value"]))
    (first, *_) = _tensors([*args, *kwargs.values()])
    with first.fake_mode, torch.no_grad():
        call = getattr(args[0], node.target) if node.op == "call_method" else node.target
        return call(*args[node.op == "call_method" :], **kwargs)


def _join(layers: list[Node]) -> None:
    """Replace layers, in the order of the graph, by one at the place of the first."""
    first, graph = layers[0], layers[0].graph
    input, *operands = first.args
    sizes = [layer.args[1].meta["example_value"].shape[0] for layer in layers]

    def add(target, *arguments) -> Node:
        node = graph.call_function(target, arguments)
        node.meta |= {name: first.meta[name] for name in ("stack_trace", "nn_module_stack") if name in first.meta}
        node.meta["example_value"] = _again(node, {})
        return node

    with graph.inserting_before(first):
        parameters = [
            add(torch.cat, [layer.args[place] for layer in layers]) if given is not None else None
            for place, given in enumerate(operands, 1)
        ]
        whole = graph.call_function(F.linear, (input, *parameters))
        whole.meta = dict(first.meta)
        fake = first.meta["example_value"]
        with fake.fake_mode:
            whole.meta["example_value"] = fake.new_empty((*fake.shape[:-1], sum(sizes)))
        parts = add(torch.split, whole, sizes, -1)
        results = [add(operator.getitem, parts, i) for i in range(len(layers))]
    for layer, result in zip(layers, results, strict=True):
        layer.replace_all_uses_with(result)
        graph.erase_node(layer)
