"""Save random numbers of the forward, so that the backward sees the same numbers."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..ir.custom_ops import draw_key, random
from ..ir.fx_utils import arguments_of
from .mutated_inputs import must_save


def save_random(joint: GraphModule) -> None:
    """Mark for AOTAutograd's partition that results of generators are saved, whatever else it recomputes. Dropout's
    numbers are recomputed from their keys, which are saved."""
    for node in joint.graph.nodes:
        if node.target is random:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        elif node.target is draw_key:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        elif is_random(node):
            must_save(node)


def is_random(node: Node) -> bool:
    """True for an operator that draws from a generator. Attention draws for its dropout only."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return arguments_of(node).get("dropout_p") != 0
