"""Save what generators draw in the forward, so that the backward sees the same numbers."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.custom_ops import draw_key, random
from .mutated_inputs import must_save


def save_random(joint: GraphModule) -> None:
    """Tells AOTAutograd's partition to save what generators draw, whatever else it has computed again: keys, too, from
    which dropout's numbers are computed again."""
    for node in joint.graph.nodes:
        if node.target is random:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        elif node.target is draw_key:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        elif is_random(node):
            must_save(node)


def is_random(node: Node) -> bool:
    """True for an operator that draws from a generator. Attention does only for its dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments
    given = {each.name: each.default_value for each in arguments}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    return given.get("dropout_p") != 0
