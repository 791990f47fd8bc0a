"""Other tensors in the place of parameters and buffers of modules, which are written back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

Places = list[tuple[dict[str, Any], str, Any]]  # dicts of modules, each with a name in it and the value


def places_of(modules: Sequence[nn.Module]) -> Places:
    """Where modules and those inside of them keep parameters, buffers and modules."""
    owners = [
        own
        for module in modules
        for each in module.modules()
        for own in (each._parameters, each._buffers, each._modules)
    ]
    return [(own, name, value) for own in owners for name, value in own.items()]


@contextlib.contextmanager
def swapped(places: Places, new: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Put other tensors there for the time of the context."""
    tensors = [place for place in places if isinstance(place[2], Tensor)]
    try:
        for own, name, value in tensors:
            own[name] = new[value]
        yield
    finally:
        for own, name, value in tensors:
            own[name] = value
