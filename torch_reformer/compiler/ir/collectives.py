"""Collectives of torch.distributed in graphs. PyTorch may be built without them, so they are known by their names."""

from __future__ import annotations

from collections.abc import Callable

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d")
_WAIT = "_c10d_functional::wait_tensor"


def is_collective(operator: Callable) -> bool:
    """True for an operator that begins a collective or waits for one."""
    return getattr(operator, "namespace", None) in _NAMESPACES


def begins_collective(operator: Callable) -> bool:
    """True for an operator that begins a collective, which all processes of a group must begin in one order. Waiting
    for one is none."""
    return is_collective(operator) and operator.name() != _WAIT


def is_all_reduce(operator: Callable) -> bool:
    """True for the operator that begins the all-reduce of a copy of one tensor."""
    return begins_collective(operator) and operator.name() == "_c10d_functional::all_reduce"
