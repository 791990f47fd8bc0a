"""Types of arguments: the sentences that public functions raise for wrong ones."""

from __future__ import annotations

import numbers

import torch
from torch import Tensor

_MOST_SHOWN = 60  # characters of a value


def shown(value: object) -> str:
    """A value and its type, in one line."""
    text = " ".join(repr(value).split())
    text = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
    return text if value is None else f"{text} ({type(value).__name__})"


def check_tensors(op: str, **tensors: object) -> None:
    """Raises ``TypeError`` for the first that is no tensor, nor stands for one in a graph that is recorded."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor) and not hasattr(type(value), "__torch_function__"):
            raise TypeError(f"{op}: {name} must be a tensor, got {shown(value)}")


def is_number(value: object) -> bool:
    """Whether it is a real number, which may be symbolic."""
    return isinstance(value, (int, float)) or isinstance(value, (numbers.Real, torch.SymInt, torch.SymFloat))


def check_number(op: str, name: str, value: object) -> None:
    """Raises ``TypeError`` for what is no real number."""
    if not is_number(value):
        raise TypeError(f"{op}: {name} must be a number, got {shown(value)}")


def check_module(op: str, model: object) -> None:
    """Raises ``TypeError`` for what is no module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{op}: model must be a torch.nn.Module, got {shown(model)}")
