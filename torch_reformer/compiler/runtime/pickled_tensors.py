"""Tensors of plans and modules as bytes, for later processes. PyTorch pickles and loads them while fake tensors are
traced; those of a GPU are copied to the host and back, of which fake tensors have nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

from torch import nn

from ..ir.fake_tensors import real_tensors


class Constants(list):
    """A list that pickles with the elements of its tensors, and loads with them, in any mode."""

    def __reduce__(self):
        return _loaded, (Constants, _pickled([*self]))


class _Buffers(dict):
    """A module's buffers, in the same way."""

    def __deepcopy__(self, memo: dict) -> _Buffers:
        return _Buffers(copy.deepcopy({**self}, memo))  # tensors that do not pickle, too, and none by way of the host

    def __reduce__(self):
        return _loaded, (_Buffers, _pickled({**self}))


def pickle_buffers(module: nn.Module) -> None:
    """Let buffers of a module pickle in any mode: PyTorch's cache stores a backward with its folded constants."""
    module._buffers = _Buffers(module._buffers)


def _pickled(values: Any) -> bytes:
    with real_tensors():
        return pickle.dumps(values)


def _loaded(kind: Callable, data: bytes) -> Any:
    with real_tensors():
        return kind(pickle.loads(data))
