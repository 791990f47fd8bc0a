"""Operators that do more than compute their results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import node as fx_node

from .collectives import begins_collective, is_collective


def is_ordered(operator: Callable) -> bool:
    """True if all such operators must run, in their order: they draw from a generator, begin collectives, or were given
    to ``torch.fx.node.has_side_effect``. PyTorch has done so with waits and assertions, too, which may be at any place
    behind what they read."""
    if is_collective(operator):
        return begins_collective(operator)
    is_random = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
    is_of_pytorch = getattr(operator, "namespace", "aten") in ("aten", "prims")
    return is_random or (operator in fx_node._side_effectful_functions and not is_of_pytorch)
