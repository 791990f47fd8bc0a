"""Type checks of arguments, with the messages that public functions raise."""

from __future__ import annotations

import numbers

import torch
from torch import Tensor

_MOST_SHOWN = 60  # characters of a value's repr


def shown(value: object) -> str:
    """A value and its type in one line, for error messages."""
    text = " ".join(repr(value).split())
    text = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
    return text if value is None else f"{text} ({type(value).__name__})"


def check_tensors(op: str, **tensors: object) -> None:
    """Raise ``TypeError`` for the first argument that is neither a tensor nor a stand-in for one while a graph is
    recorded."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor) and not hasattr(type(value), "__torch_function__"):
            raise TypeError(f"{op}: {name} must be a tensor, got {shown(value)}")


def is_number(value: object) -> bool:
    """True for a real number, which may be symbolic."""
    return isinstance(value, (int, float)) or isinstance(value, (numbers.Real, torch.SymInt, torch.SymFloat))


def check_number(op: str, name: str, value: object) -> None:
    """Raise ``TypeError`` unless the value is a real number."""
    if not is_number(value):
        raise TypeError(f"{op}: {name} must be a number, got {shown(value)}")


def check_module(op: str, model: object) -> None:
    """Raise ``TypeError`` unless the model is a module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{op}: model must be a torch.nn.Module, got {shown(model)}")
