"""Operators that do more than compute their results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import node as fx_node

from .collectives import begins_collective


def is_ordered(operator: Callable) -> bool:
    """True if all such operators must run, in their order: they draw from a generator, begin collectives, or were given
    to ``torch.fx.node.has_side_effect``."""
    is_random = torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())
    return is_random or begins_collective(operator) or operator in fx_node._side_effectful_functions
