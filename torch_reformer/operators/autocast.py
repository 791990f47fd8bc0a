"""What autocast does to a convolution's operands, by the operators themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import any_autocast


def autocast_type(tensor: Tensor, device: torch.device | None = None) -> torch.dtype | None:
    """What autocast casts a tensor to that goes into aten::conv2d, where it is on for this device, that of the
    convolution (by default the tensor's): floating-point tensors of the device, but fp64. None: it stays as it is."""
    kind = tensor.device.type
    if device is not None and kind != device.type:
        return None
    if not (any_autocast() and torch.is_autocast_enabled(kind)):
        return None
    dtype, own = torch.get_autocast_dtype(kind), tensor.dtype
    return dtype if own != dtype and own != torch.float64 and own.is_floating_point else None


def autocast_cast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """As aten::conv2d's operands are, of which the first one's device is that of the convolution."""
    if not any_autocast():
        return tensors
    device = tensors[0].device

    def cast(tensor):
        dtype = None if tensor is None else autocast_type(tensor, device)
        return tensor if dtype is None else tensor.to(dtype)

    return tuple([cast(tensor) for tensor in tensors])


class _Copy(torch.autograd.Function):
    """A copy of a weight in another data type, which a forward made, as autograd sees it."""

    @staticmethod
    def forward(ctx, weight, copy):
        ctx.dtype = weight.dtype
        return copy.detach()

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype), None


class CastWeight:
    """A convolution's weight that an operator casts for autocast itself. A backward reads the copy, so that the weight
    may change in place before it.

    Args:
        dtype: that of the copy.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype):
        self.weight, self.dtype = weight, dtype

    @staticmethod
    def of(input: Tensor, weight: Tensor) -> CastWeight | None:
        """None: autocast leaves the weight as it is, beside this input."""
        dtype = autocast_type(weight, input.device)
        return None if dtype is None else CastWeight(weight, dtype)

    def linked(self, copy: Tensor) -> Tensor:
        """The copy, for a backward that is differentiated again."""
        return _Copy.apply(self.weight, copy.reshape(self.weight.shape))
