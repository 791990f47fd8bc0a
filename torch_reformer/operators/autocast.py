"""Autocast of a convolution's operands, done by the operators themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import any_autocast


def autocast_type(tensor: Tensor, device: torch.device | None = None) -> torch.dtype | None:
    """Data type to which autocast casts an operand of aten::conv2d, or None if it leaves the operand as it is. Autocast
    casts floating-point tensors of the convolution's device, except fp64.

    Args:
        device: the convolution's device; the tensor's own by default.
    """
    kind = tensor.device.type
    if device is not None and kind != device.type:
        return None
    if not (any_autocast() and torch.is_autocast_enabled(kind)):
        return None
    dtype, current = torch.get_autocast_dtype(kind), tensor.dtype
    return dtype if current != dtype and current != torch.float64 and current.is_floating_point else None


def autocast_cast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Cast tensors as autocast casts the operands of aten::conv2d. The first tensor is on the convolution's device."""
    if not any_autocast():
        return tensors
    device = tensors[0].device

    def cast(tensor):
        dtype = None if tensor is None else autocast_type(tensor, device)
        return tensor if dtype is None else tensor.to(dtype)

    return tuple([cast(tensor) for tensor in tensors])


class _Copy(torch.autograd.Function):
    """Autograd node between a weight and the copy in another data type that a forward made."""

    @staticmethod
    def forward(ctx, weight, copy):
        ctx.dtype = weight.dtype
        return copy.detach()

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype), None


class CastWeight:
    """Weight of a convolution that an operator itself casts for autocast. The backward reads the copy, so the weight
    may change in place before it.

    Args:
        dtype: the copy's data type.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype):
        self.weight, self.dtype = weight, dtype

    @staticmethod
    def of(input: Tensor, weight: Tensor) -> CastWeight | None:
        """The cast that autocast does for this input and weight; None if it leaves the weight as it is."""
        dtype = autocast_type(weight, input.device)
        return None if dtype is None else CastWeight(weight, dtype)

    def linked(self, copy: Tensor) -> Tensor:
        """Connect the copy to the weight in autograd's graph, for a backward that is differentiated again."""
        return _Copy.apply(self.weight, copy.reshape(self.weight.shape))
