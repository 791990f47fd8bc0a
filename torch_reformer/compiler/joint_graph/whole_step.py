"""A whole training step as one graph that has gone through the stages of joint graphs: it is split into a forward and a
backward, as graphs are for autograd, and put together again. So losses are computed in chunks, products are padded, and
activations recomputed within the memory budget, as in two plans.

Equal results of both parts are shared later (passes/share_equal.py), unless they are recomputed to save memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.custom_ops import PART, PARTS, after, scaled
from ..ir.fx_utils import copied, followers
from .memory_budget import current_budget

aten = torch.ops.aten
_SEED = "tangents_1"  # by such names passes know gradients of results


def whole_step(step: GraphModule, inputs: list, tangent: int, results: int, partition: Callable) -> GraphModule:
    """The graph of a training step, split and put together.

    Args:
        step: gives results of the forward, the loss first, and then gradients. At its end it may copy to inputs.
        tangent: position of the input that is the gradient of the loss.
        results: the number of the forward's results.
        partition: splits a joint graph.
    """
    joint = GraphModule(step, copied(step.graph))
    seed = _rename(joint.graph, tangent)
    writes = _take_writes(joint, seed, results)
    early = sum(is_early for _, is_early in writes)
    is_saving = current_budget() < 1 or any(map(_is_recomputed, joint.graph.nodes))
    joint.recompile()
    forward, backward = partition(joint, inputs, num_fwd_outputs=results + early)

    graph, module = Graph(), GraphModule(step, Graph())
    given = {node.name: graph.node_copy(node) for node in step.graph.find_nodes(op="placeholder")}
    given[_SEED] = [*given.values()][tangent]
    known, first = _copy(forward, module, graph, given, ())
    _mark(graph, PARTS[0])
    _, second = _copy(backward, module, graph, given | known, first[:1] if is_saving else ())
    _mark(graph, PARTS[1])
    graph.output((*first[:results], *second[: len(second) - len(writes) + early]))
    sources = [*first[results : results + early], *second[len(second) - len(writes) + early :]]
    ordered = sorted(writes, key=lambda write: not write[1])
    with graph.inserting_before(graph.output_node()):
        for (name, _), source in zip(ordered, sources, strict=True):
            if source is not given[name]:
                graph.call_function(aten.copy_.default, (given[name], source)).meta = dict(given[name].meta)
    graph.eliminate_dead_code()
    module.graph = graph
    return module


def without_factor(step: GraphModule, tangent: int) -> None:
    """Let the gradient of the loss be 1."""
    seed = step.graph.find_nodes(op="placeholder")[tangent]
    for node in step.graph.find_nodes(op="call_function", target=scaled):
        if node.args[1] is seed:
            node.replace_all_uses_with(node.args[0])
            step.graph.erase_node(node)
    value = seed.meta["val"]
    with step.graph.inserting_after(step.graph.find_nodes(op="placeholder")[-1]):
        one = step.graph.call_function(aten.full.default, ((), 1), {"dtype": value.dtype, "device": value.device})
    one.meta["val"] = value
    seed.replace_all_uses_with(one)


def mark_update(step: GraphModule) -> None:
    """Note that what was added to the graph since whole_step() is the update."""
    _mark(step.graph, PARTS[2])


def _mark(graph: Graph, part: str) -> None:
    """Note the part of a step in nodes that are in none yet."""
    for node in graph.nodes:
        if node.op != "placeholder":
            node.meta.setdefault(PART, part)


def _rename(graph: Graph, place: int) -> Node:
    old = graph.find_nodes(op="placeholder")[place]
    with graph.inserting_after(old):
        seed = graph.placeholder(_SEED)
    seed.meta = dict(old.meta)
    old.replace_all_uses_with(seed)
    graph.erase_node(old)
    return seed


def _take_writes(joint: GraphModule, seed: Node, results: int) -> list[tuple[str, bool]]:
    """Let the graph give what it copies to inputs. Returns the inputs' names, and if the forward computes the copy."""
    late, output = followers(joint, [seed]), joint.graph.output_node()
    writes = [(node.args[0].name, node.args[1], node.args[1] not in late) for node in _writes(joint.graph)]
    for node in [*_writes(joint.graph)]:
        joint.graph.erase_node(node)
    returned, *_ = output.args
    early = [source for _, source, is_early in writes if is_early]
    rest = [source for _, source, is_early in writes if not is_early]
    output.args = ((*returned[:results], *early, *returned[results:], *rest),)
    output.meta = {}  # notes on each of the results
    return [(name, is_early) for name, _, is_early in writes]


def _writes(graph: Graph) -> Iterator[Node]:
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        if node.args[0].op == "placeholder":
            yield node


def _is_recomputed(node: Node) -> bool:
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def _copy(
    part: GraphModule, module: GraphModule, graph: Graph, given: dict[str, Node], before: tuple[Node, ...] | list[Node]
) -> tuple[dict[str, Node], list]:
    """Copy a part into a graph.

    Args:
        given: the part's inputs by their names, and others.
        before: results without which the part computes nothing again that the forward has computed.

    Returns:
        The copies by their names, and the part's results.
    """
    late = followers(part, part.graph.find_nodes(op="placeholder", target=_SEED))
    known: dict[Node, Node] = {}
    postponed: dict[Node, Node] = {}

    def again(node: Node) -> Node:
        if node.op != "placeholder" or not isinstance(node.meta.get("val"), Tensor):
            return known[node]
        if node not in postponed:
            postponed[node] = graph.call_function(after, (known[node], list(before)))
            postponed[node].meta["val"] = node.meta["val"]
        return postponed[node]

    for node in part.graph.nodes:
        if node.op == "placeholder":
            known[node] = given[node.name]
        elif node.op == "output":
            return {node.name: copy for node, copy in known.items()}, list(map_arg(node.args[0], known.__getitem__))
        else:
            known[node] = graph.node_copy(node, again if before and node not in late else known.__getitem__)
            if node.op == "get_attr":
                name = f"constant_{len(graph.nodes)}"
                setattr(module, name, getattr(part, node.target))
                known[node].target = name
    raise ValueError("a graph without results")
