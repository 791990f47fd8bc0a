"""What a fused forward calls, with a model's own modules.

Where the call is not what the operators compute (hooks were added or modules exchanged after fuse(), an input without a
batch, a sum of another size or data type), the modules are called one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from . import fused
from . import nn as nn_of_ours
from .epilogue import ACTIVATIONS

UNDERSTOOD = {nn.Conv2d, nn_of_ours.Conv2d, nn.BatchNorm2d, nn.Linear, nn.Dropout}


def hooks(module: nn.Module) -> str | None:
    forward, backward = module._forward_hooks or module._forward_pre_hooks, module._backward_hooks
    found = forward or backward or module._backward_pre_hooks
    return "it has hooks, which would not be called" if found else None


def _unchanged(*modules: nn.Module) -> bool:
    return all(type(module) in UNDERSTOOD and not hooks(module) for module in modules)


def _output_size(conv: nn.Conv2d, input: Tensor) -> tuple[int, ...]:
    sizes = [
        (input.shape[2 + d] + 2 * conv.padding[d] - conv.dilation[d] * (conv.kernel_size[d] - 1) - 1) // conv.stride[d]
        + 1
        for d in (0, 1)
    ]
    return input.shape[0], conv.out_channels, *sizes


def _fits(residual, conv: nn.Conv2d, input: Tensor, in_place: bool) -> bool:
    """Whether the sum has the size and data type of the convolution's result: PyTorch's might have others, unless it is
    computed in place."""
    if not isinstance(residual, Tensor) or residual.shape != torch.Size(_output_size(conv, input)):
        return False
    device = input.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
    return residual.is_floating_point() if in_place else residual.dtype == dtype


def conv_act(conv: nn.Conv2d, input: Tensor, activation: str, residual=None, in_place: bool = False) -> Tensor:
    """activation(conv(input) + residual), by the modules' own settings."""
    if not _unchanged(conv) or input.dim() != 4:
        return _separately(conv(input), activation, residual, in_place)
    geometry = conv.stride, conv.padding, conv.dilation, conv.groups
    if residual is None or _fits(residual, conv, input, in_place):
        return fused.conv2d_act(input, conv.weight, conv.bias, *geometry, activation=activation, residual=residual)
    result = fused.conv2d_act(input, conv.weight, conv.bias, *geometry, activation="none")
    return _separately(result, activation, residual, in_place)


def conv_norm_act(
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    input: Tensor,
    activation: str,
    residual=None,
    in_place: bool = False,
    uses: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """activation(norm(conv(input)) + residual), for each of its uses."""
    is_fused = _unchanged(conv, norm) and input.dim() == 4
    if is_fused and (residual is None or _fits(residual, conv, input, in_place)):
        return nn_of_ours.conv_norm_act(conv, norm, input, activation, residual, uses)
    value = nn_of_ours.conv_norm_act(conv, norm, input, "none") if is_fused else norm(conv(input))
    value = _separately(value, activation, residual, in_place)
    return value if uses == 1 else (value,) * uses


def linear_act(linear: nn.Linear, input: Tensor, activation: str, dropout: nn.Dropout | None = None) -> Tensor:
    """dropout(activation(linear(input)))."""
    if not _unchanged(linear) or (dropout is not None and not _unchanged(dropout)):
        value = _separately(linear(input), activation)
        return value if dropout is None else dropout(value)
    rate, training = (dropout.p, dropout.training) if dropout is not None else (0.0, False)
    return fused.linear_act(input, linear.weight, linear.bias, activation=activation, dropout=rate, training=training)


def _separately(value: Tensor, activation: str, residual=None, in_place: bool = False) -> Tensor:
    if residual is not None:
        value = value.add_(residual) if in_place else value + residual
    return _IN_PYTORCH[activation](value)


_IN_PYTORCH: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": nn.functional.relu,
    "relu6": nn.functional.relu6,
    "leaky_relu": nn.functional.leaky_relu,
    "silu": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "hardswish": nn.functional.hardswish,
    "hardsigmoid": nn.functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
assert _IN_PYTORCH.keys() == ACTIVATIONS.keys()
