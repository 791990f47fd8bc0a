"""Compute an attention's projections of one tensor, as queries, keys and values often are, by one product.

Under autocast a plan casts all parameters into one buffer, where those of one product lie side by side for nothing
(joint_graph/cast_parts.py, passes/pack_casts.py). One product of many columns fills a GPU better than several of
few, forward and for the gradients of weights, and the input's gradient is one product instead of a sum of several.
Models of transformers, unlike those of timm, have separate modules for them.

Layers whose results element-wise operations read, as a gated MLP's, stay apart: a product's own kernel computes these.
"""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ...runtime.dtypes import NARROW
from ..ir.custom_ops import packed_starts
from .attention_calls import attention_calls, is_static
from .fake_results import fake_result, tensors_of
from .modes import is_mode
from .writes import may_write

_FARTHEST = 100  # nodes between projections and attention
_DEVICES = {"cuda"}  # whose products gain by it


def join_projections(module: GraphModule) -> None:
    """Change Dynamo's graph: linear layers on GPUs whose parameters autocast casts, which read one tensor and lead to
    the operands of one attention, become one layer, whose result is split."""
    nodes, attentions = list(module.graph.nodes), attention_calls(module.graph)
    places, joined = {node: place for place, node in enumerate(nodes)}, set()
    for arguments in attentions.values():
        operands = [arguments.get(name) for name in ("query", "key", "value")]
        kinds: dict[tuple, list[Node]] = {}
        for layer in _layers_before(operands):
            if layer not in joined and (kind := _kind(layer)) is not None:
                kinds.setdefault(kind, []).append(layer)
        for layers in kinds.values():
            layers.sort(key=places.__getitem__)
            between = nodes[places[layers[0]] : places[layers[-1]]]
            if len(layers) < 2 or not _lie_side_by_side(layers) or any(is_mode(n) or may_write(n) for n in between):
                continue
            if _can_be_split(layers, attentions):
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
    """A key that is equal for layers that can be one; None for a layer that can't be joined."""
    input, weight, bias = (*layer.args, None, None)[:3]
    if layer.kwargs or not all(is_static(each) for each in (layer, input, weight)):
        return None
    result, of_weight = layer.meta["example_value"], weight.meta["example_value"]
    is_cast = of_weight.dtype == torch.float32 and result.dtype in NARROW
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


def _can_be_split(layers: list[Node], attentions: Container[Node]) -> bool:
    """True if all that views the layers' results can view slices with gaps between their rows, nothing writes to them,
    and none is a result of the graph. attentions: nodes whose results are tensors of their own."""
    changed: dict[Node, Any] = {}
    width = sum(layer.meta["example_value"].shape[-1] for layer in layers)
    for layer in layers:
        fake = layer.meta["example_value"]
        with fake.fake_mode, torch.no_grad():
            changed[layer] = fake.new_empty((*fake.shape[:-1], width))[..., : fake.shape[-1]]
    memories, mode = _memories([*changed.values()]), fake.fake_mode
    todo = [user for layer in layers for user in layer.users]
    while todo:
        node = todo.pop()
        if node in attentions:
            continue
        if node.op == "output" or may_write(node):
            return False
        try:
            value = fake_result(node, mode, changed)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
            return False
        if not memories.isdisjoint(_memories(value)):
            changed[node] = value
            todo += node.users
    return True


def _memories(value: Any) -> set[int]:
    """Identities of the storages of fake tensors."""
    return {each.untyped_storage()._cdata for each in tensors_of(value)}


def _join(layers: list[Node]) -> None:
    """Replace layers, in the order of the graph, by one at the place of the first."""
    first, graph = layers[0], layers[0].graph
    input, *operands = first.args
    sizes = [layer.args[1].meta["example_value"].shape[0] for layer in layers]
    fake = first.meta["example_value"]

    def add(target, *arguments) -> Node:
        node = graph.call_function(target, arguments)
        node.meta |= {name: first.meta[name] for name in ("stack_trace", "nn_module_stack") if name in first.meta}
        node.meta["example_value"] = fake_result(node, fake.fake_mode)
        return node

    with graph.inserting_before(first):
        parameters = [
            add(torch.cat, [layer.args[place] for layer in layers]) if given is not None else None
            for place, given in enumerate(operands, 1)
        ]
        whole = graph.call_function(F.linear, (input, *parameters))
        whole.meta = dict(first.meta)
        with fake.fake_mode:
            whole.meta["example_value"] = fake.new_empty((*fake.shape[:-1], sum(sizes)))
        parts = add(torch.split, whole, sizes, -1)
        results = [add(operator.getitem, parts, i) for i in range(len(layers))]
    for layer, result in zip(layers, results, strict=True):
        layer.replace_all_uses_with(result)
        graph.erase_node(layer)
