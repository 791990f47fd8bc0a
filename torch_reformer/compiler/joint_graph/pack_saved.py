"""Save the casts of parameters as one tensor. Under autocast, a forward saves a narrow copy of nearly every weight for
its backward. Autograd, and CUDA graphs with their checks of what is alive, take time for each saved tensor, not for
each byte."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from ..ir.custom_ops import FEWEST_PACKED, PACKED, pack, packed_starts
from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import base_of, given_again

aten = torch.ops.aten


def pack_saved(forward: GraphModule, backward: GraphModule, outputs: int) -> None:
    """Pack saved casts of the forward's inputs, and views of them.

    The order of the other saved tensors stays as it is, as AOTAutograd's kinds of saved tensors follow each other.

    Args:
        outputs: the number of the forward's own results, before the saved tensors.
    """
    (output,) = forward.graph.find_nodes(op="output")
    saved = [node for node in output.args[0][outputs:] if _is_packable(node)]
    returned = {base_of(node) for node in output.args[0][:outputs] if isinstance(node, Node)}
    by_kind: dict[tuple, list[Node]] = {}
    for node in saved:
        value = node.meta["val"]
        if base_of(node) not in returned:
            by_kind.setdefault((value.dtype, base_of(node).args[0].meta["val"].dtype, value.device), []).append(node)
    for nodes in by_kind.values():
        casts = list(dict.fromkeys(map(base_of, nodes)))
        if len(casts) >= FEWEST_PACKED:
            _pack(forward, backward, nodes, casts)


def _is_packable(node: Node) -> bool:
    """True for a cast of an input between floating-point types, and for a view that has all of its elements."""
    if not isinstance(node, Node) or node.meta.get("saved_tensor_with_no_vc_check"):
        return False
    cast = base_of(node)
    if cast.target is not aten._to_copy.default or cast.args[0].op != "placeholder":
        return False
    given, value, whole = (each.meta["val"] for each in (cast.args[0], node, cast))
    if not (given.dtype.is_floating_point and value.dtype.is_floating_point and given.dtype != value.dtype):
        return False
    if not all(isinstance(number, int) for number in (*whole.shape, *whole.stride(), *value.shape, *value.stride())):
        return False
    layouts = layout_of(value), layout_of(whole)
    return all(layout.is_dense for layout in layouts) and 0 < value.numel() == whole.numel()


def _pack(forward: GraphModule, backward: GraphModule, nodes: list[Node], casts: list[Node]) -> None:
    (output,) = forward.graph.find_nodes(op="output")
    starts = dict(zip(casts, packed_starts(cast.meta["val"].numel() for cast in casts), strict=False))
    with forward.graph.inserting_before(output):
        packed = forward.graph.call_function(pack, (casts,))
    packed.meta["val"] = given_again(packed, {})
    _replace_results(output, nodes, packed)

    placeholders = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    with backward.graph.inserting_before(placeholders[nodes[0].name]):
        memory = backward.graph.placeholder(packed.name)
    assert memory.name == packed.name  # by which AOTAutograd knows it
    memory.meta["val"] = packed.meta["val"]
    first = next(node for node in backward.graph.nodes if node.op != "placeholder")
    for node in nodes:
        old, value = placeholders[node.name], node.meta["val"]
        with backward.graph.inserting_before(first):
            arguments = memory, tuple(value.shape), value.stride(), starts[base_of(node)]
            part = backward.graph.call_function(aten.as_strided.default, arguments)
        part.meta = {**old.meta, PACKED: True, "val": given_again(part, {})}
        old.replace_all_uses_with(part)
        backward.graph.erase_node(old)


def _replace_results(output: Node, nodes: list[Node], packed: Node) -> None:
    """Let the graph give one node in place of the first of others, and not the rest."""
    (results,) = output.args
    notes = output.meta.get("desc", [None] * len(results))
    rest = set(nodes[1:])
    kept = [pair for pair in zip(results, notes, strict=True) if pair[0] not in rest]
    output.args = (tuple(packed if result is nodes[0] else result for result, _ in kept),)
    output.meta["desc"] = [note for _, note in kept]
