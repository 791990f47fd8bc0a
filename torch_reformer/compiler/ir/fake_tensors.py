"""Layouts and types from fake tensors: results without data, which PyTorch records with each node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: F401
from torch._subclasses.fake_tensor import unset_fake_temporarily as real_tensors  # noqa: F401

from .graph import Typed
from .layout import Layout

DEVICES = ("cpu", "cuda")


class Unsupported(Exception):
    """Raised for a graph that cannot be planned; the message says why."""


def layout_of(tensor: Tensor, offset: int = 0) -> Layout:
    """Layout of a tensor whose first element lies at `offset`.

    Raises:
        Unsupported: a size or stride is a symbol.
    """
    numbers = (*tensor.shape, *tensor.stride())
    if not all(isinstance(number, int) for number in numbers):
        raise Unsupported("a tensor's size depends on the values of another")
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), offset)


def typed(tensor: Tensor) -> Typed:
    """Layout, data type and device of a tensor.

    Raises:
        Unsupported: no plan runs on the device, or a size is not known.
    """
    if tensor.device.type not in DEVICES:
        raise Unsupported(f"a tensor is on the device {tensor.device}, and plans run on {' and '.join(DEVICES)}")
    return Typed(layout_of(tensor), tensor.dtype, tensor.device)


@contextmanager
def fake_tensors() -> Iterator[Callable[[Tensor], Tensor]]:
    """Context in which nothing is computed; gives a function that turns a tensor into a fake one."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield lambda tensor: mode.from_tensor(tensor.detach())


def is_plain(tensor: Tensor) -> bool:
    """True if the memory holds the elements themselves: not sparse, quantised, or a lazy conjugate or negation."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
