"""What the graph takes from fake tensors: the results, without data, that PyTorch recorded with each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily as real_tensors  # noqa: F401  for others

from .graph import Typed
from .layout import Layout

DEVICES = ("cpu", "cuda")


class Unsupported(Exception):
    """What no plan can have; a sentence."""


def layout_of(tensor: Tensor, offset: int = 0) -> Layout:
    """Raises Unsupported where sizes are not known."""
    numbers = (*tensor.shape, *tensor.stride())
    if not all(isinstance(each, int) for each in numbers):
        raise Unsupported("a tensor's size depends on the values of another")
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), offset)


def typed(tensor: Tensor) -> Typed:
    """Raises Unsupported where no plan runs: on the meta device, say."""
    if tensor.device.type not in DEVICES:
        raise Unsupported(f"a tensor is on the device {tensor.device}, and plans run on {' and '.join(DEVICES)}")
    return Typed(layout_of(tensor), tensor.dtype, tensor.device)


@contextmanager
def fake_tensors() -> Iterator[Callable[[Tensor], Tensor]]:
    """A mode in which nothing is computed, and a function that gives a tensor's fake one there."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield lambda tensor: mode.from_tensor(tensor.detach())


def is_plain(tensor: Tensor) -> bool:
    """Whether its memory holds its elements as they are."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
