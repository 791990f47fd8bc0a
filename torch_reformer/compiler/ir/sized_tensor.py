"""Stand-ins for fake tensors whose sizes and strides are sizes of symbols (runtime/sizes.py), or plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .fake_tensors import Unsupported
from .layout import Layout


class SizedTensor:
    """Answers what the compiler asks of a tensor's sizes; isinstance() takes it for a tensor. No operator runs with it.

    Args:
        like: a tensor of the same device and, unless another is given, data type.
    """

    __class__ = property(lambda self: Tensor)  # type: ignore[assignment]
    layout, is_quantized, requires_grad = torch.strided, False, False

    def __init__(self, like, shape: Sequence, strides: Sequence, offset=0, dtype: torch.dtype | None = None):
        self.dtype, self.device = dtype or like.dtype, like.device
        self.shape, self._strides, self._offset = tuple(shape), tuple(strides), offset

    def stride(self, d=None):
        return self._strides if d is None else self._strides[d]

    def size(self, d=None):
        return self.shape if d is None else self.shape[d]

    def dim(self) -> int:
        return len(self.shape)

    ndim = property(dim)

    def storage_offset(self):
        return self._offset

    def numel(self):
        return math.prod(self.shape)

    @property
    def nbytes(self):
        return self.numel() * self.dtype.itemsize

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        if memory_format == torch.channels_last and self.dim() != 4:
            return False
        return Layout(self.shape, self._strides).matches(Layout(self.shape, self._in_format(memory_format)))

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> SizedTensor:
        if self.is_contiguous(memory_format):
            return self
        return SizedTensor(self, self.shape, self._in_format(memory_format))

    def _in_format(self, memory_format: torch.memory_format) -> tuple:
        order = (0, 2, 3, 1) if memory_format == torch.channels_last else range(self.dim())
        strides, expected = [1] * self.dim(), 1
        for d in reversed(order):
            strides[d] = expected
            expected = expected * self.shape[d]
        return tuple(strides)

    def new_empty_strided(self, shape: Sequence, strides: Sequence) -> SizedTensor:
        return SizedTensor(self, shape, strides)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"a pass asks for {name} of a tensor whose sizes are symbols")

    def __repr__(self) -> str:
        return f"SizedTensor({self.dtype}, {list(self.shape)}, {list(self._strides)})"
