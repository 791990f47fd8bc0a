"""Which tensors a forward saves for its backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from torch.fx import GraphModule, Node


def save_instead(
    forward: GraphModule,
    backward: GraphModule,
    nodes: list[Node],
    memory: Node,
    part_of: Callable[[Node, Node], Node],
) -> None:
    """Let the forward save one tensor in the place of the first of others, and not the rest. AOTAutograd's kinds of
    saved tensors follow each other, so the order of all others stays as it is.

    Args:
        part_of: adds the node by which the backward has one of the others, its second argument, as a part of the saved
            tensor, which is its first.
    """
    (output,) = forward.graph.find_nodes(op="output")
    _replace_results(output, nodes, memory)
    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    with backward.graph.inserting_before(placeholders[nodes[0].name]):
        saved = backward.graph.placeholder(memory.name)
    assert saved.name == memory.name  # by which AOTAutograd knows it
    saved.meta["val"] = memory.meta["val"]
    first = next(node for node in backward.graph.nodes if node.op != "placeholder")
    for node in nodes:
        old = placeholders[node.name]
        with backward.graph.inserting_before(first):
            part = part_of(saved, old)
        old.replace_all_uses_with(part)
        backward.graph.erase_node(old)


def _replace_results(output: Node, nodes: list[Node], memory: Node) -> None:
    """Let the graph give one node in place of the first of others, and not the rest."""
    (results,), notes = output.args, output.meta.get("desc", ())  # other stages give results without notes
    rest = set(nodes[1:])
    kept = [pair for pair in itertools.zip_longest(results, notes) if pair[0] not in rest]
    output.args = (tuple(memory if result is nodes[0] else result for result, _ in kept),)
    output.meta["desc"] = [note for _, note in kept]
