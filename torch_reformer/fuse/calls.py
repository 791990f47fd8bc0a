"""What a fused forward calls, with a model's own modules, which are those that fuse() saw (guard.py).

Where the call is not what the operators compute (an input without a batch, a sum of another size or data type), the
modules are called one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import functional
from .. import nn as nn_of_ours
from ..operators import fused_programs
from ..operators import layer_norm as layer_norms
from ..operators.conv_epilogue import linear_epilogue
from ..operators.dispatch import needs_dispatcher, without_autocast
from ..operators.rows import Rows
from ..program import ACTIVATIONS
from ..runtime import native

CONVOLUTIONS = nn.Conv2d, nn_of_ours.Conv2d


OWN_FORWARD = "its forward is not its class's"


def reason_to_call(module: nn.Module) -> str | None:
    """Why a module has to be called itself, whatever its class computes."""
    if "forward" in vars(module) or "_conv_forward" in vars(module):
        return OWN_FORWARD
    forward, backward = module._forward_hooks or module._forward_pre_hooks, module._backward_hooks
    found = forward or backward or module._backward_pre_hooks
    return "it has hooks, which would not be called" if found else None


def _autocast_type(input: Tensor) -> torch.dtype | None:
    """In which autocast has convolutions computed where the input is, or None if it is off, or there is none (meta)."""
    device = input.device.type
    is_on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_on else None


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
    dtype = _autocast_type(input) or input.dtype
    return residual.is_floating_point() if in_place else residual.dtype == dtype


def conv_act(conv: nn.Conv2d, input: Tensor, activation: str, residual=None, in_place: bool = False) -> Tensor:
    """activation(conv(input) + residual), by the modules' own settings."""
    if input.dim() != 4:
        return _separately(conv(input), activation, residual, in_place)
    geometry = conv.stride, conv.padding, conv.dilation, conv.groups
    if residual is None or _fits(residual, conv, input, in_place):
        return functional.conv2d_act(input, conv.weight, conv.bias, *geometry, activation=activation, residual=residual)
    result = functional.conv2d_act(input, conv.weight, conv.bias, *geometry, activation="none")
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
    is_fused = input.dim() == 4
    if is_fused and (residual is None or _fits(residual, conv, input, in_place)):
        return nn_of_ours.conv_norm_act(conv, norm, input, activation, residual, uses)
    value = nn_of_ours.conv_norm_act(conv, norm, input, "none") if is_fused else norm(conv(input))
    value = _separately(value, activation, residual, in_place)
    return value if uses == 1 else (value,) * uses


def linear_act(
    linear: nn.Linear,
    input: Tensor,
    activation: str,
    dropout: nn.Dropout | None = None,
    *,
    to_images: bool = False,
    scale: Tensor | None = None,
    drop: nn.Module | None = None,
    residual=None,
    in_place: bool = False,
    readers: tuple[nn.Module | None, ...] = (),
) -> Tensor | tuple[Tensor, ...]:
    """drop(dropout(activation(linear(input))) * scale) + residual. to_images: [N, H, W, K] becomes [N, K, H, W] after
    the dropout. drop: a module that multiplies each image by a random number.

    readers: what reads the result, if there is to be one for each: modules, or None for anything else. Convolutions and
    linear layers, for which autocast would make a copy in its data type, get the result in that type if they can."""
    rate = dropout.p if dropout is not None and dropout.training else 0.0
    is_fused = (
        input.dim() > (drop is not None)
        and input.shape[-1] == linear.weight.shape[1]  # PyTorch says what is wrong
        and (not to_images or (input.dim() == 4 and input.numel() > 0))
        and (scale is None or is_scale_of(scale, linear, to_images))
    )
    if is_fused:
        sizes, dtype = _linear_result(linear, input, to_images)
        is_fused = scale is None or _is_computed_in(scale, dtype)
    if not is_fused:
        value = _separately(linear(input), activation)
        value = value if dropout is None else dropout(value)
        value = value.permute(0, 3, 1, 2) if to_images else value
        value = value if scale is None else value * scale
        return _for_each(readers, _separately(value if drop is None else drop(value), "none", residual, in_place))

    of_sum = dtype if scale is None else torch.promote_types(dtype, scale.dtype)
    adds = isinstance(residual, Tensor) and residual.shape == sizes and _is_computed_in(residual, dtype)
    tensors = {"bias": linear.bias, "key": functional.dropout_key(rate, input.device)}
    tensors["scale"] = None if scale is None else scale.flatten()
    tensors["keep"] = None if drop is None else _row_mask(drop, sizes, of_sum, to_images, input.device)
    tensors["residual"] = residual if adds else None
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if adds and not in_place:
        of_sum = torch.promote_types(of_sum, residual.dtype)
    types = (None,) if of_sum == dtype else (of_sum,)
    if adds and of_sum != dtype and readers and _autocast_type(input):
        types = of_sum, None
    program = fused_programs.linear(frozenset(tensors), activation, rate, types)
    given = [tensors[name] for name in program.names]
    rows = Rows(input.shape[:-1], to_images)
    value, *rounded = linear_epilogue(input, linear.weight, given, program, rows)
    if rounded:
        return _for_each(readers, value, *rounded)
    return _for_each(readers, value if adds else _separately(value, "none", residual, in_place))


def _for_each(readers: tuple[nn.Module | None, ...], value: Tensor, rounded: Tensor | None = None):
    if not readers:
        return value
    is_cast = [rounded is not None and _is_rounded_for(reader) for reader in readers]
    return tuple(rounded if each else value for each in is_cast)


def _is_rounded_for(reader: nn.Module | None) -> bool:
    """Whether autocast rounds what this module reads to its own data type."""
    return reader is not None and type(reader) in (*CONVOLUTIONS, nn.Linear) and not reason_to_call(reader)


DEVICES_OF_LAYER_NORMS = {"cuda"}  # that have kernels for them
_HALF_OR_SINGLE = (torch.float32, torch.float16, torch.bfloat16)


def layer_norm(norm: nn.LayerNorm, reader: nn.Module | None, input: Tensor) -> Tensor:
    """norm(input). reader: a linear layer or convolution, if nothing else reads the result."""
    size, weight, bias = norm.normalized_shape, norm.weight, norm.bias
    dtype = _layer_norm_type(reader, input, size, weight, bias)
    return norm(input) if dtype is None else _layer_norm_of(input, weight, bias, norm.eps, dtype)


def layer_norm_2d(reader: nn.Module | None, input: Tensor, size, weight=None, bias=None, eps: float = 1e-5) -> Tensor:
    """The same of :func:`torch.nn.functional.layer_norm`, over the channels of images."""
    rows = input.permute(0, 2, 3, 1)
    dtype = _layer_norm_type(reader, rows, size, weight, bias)
    if dtype is None:
        result = nn.functional.layer_norm(rows, size, weight, bias, eps)
    else:
        result = _layer_norm_of(rows, weight, bias, eps, dtype)
    return result.permute(0, 3, 1, 2)


def _layer_norm_type(
    reader: nn.Module | None, input: Tensor, size, weight: Tensor | None, bias: Tensor | None
) -> torch.dtype | None:
    """The data type that the kernel of ours is to give, or None where PyTorch computes the layer norm. A GPU's autocast
    computes it in fp32, of a copy, and rounds the result to its own data type for most readers, by another."""
    device, tensors = input.device.type, (input, weight, bias)
    if device not in DEVICES_OF_LAYER_NORMS or needs_dispatcher(tensors):
        return None
    if input.dtype not in _HALF_OR_SINGLE or tuple(size) != tuple(input.shape[-1:]):
        return None
    if not native.takes_layer_norm(*size):
        return None
    if dtype := _autocast_type(input):
        return dtype if _is_rounded_for(reader) else torch.float32
    return input.dtype if all(each is None or each.dtype == input.dtype for each in tensors) else None


def _layer_norm_of(input: Tensor, *arguments) -> Tensor:
    with without_autocast():
        return layer_norms.layer_norm(input, *arguments)


def _linear_result(linear: nn.Linear, input: Tensor, to_images: bool) -> tuple[tuple[int, ...], torch.dtype]:
    """The size and data type that a linear layer's result has in PyTorch, once it is permuted."""
    rows, dtype = tuple(input.shape[:-1]), input.dtype
    if dtype != torch.float64:
        dtype = _autocast_type(input) or dtype
    columns = (linear.weight.shape[0],)
    return (rows[:1] + columns + rows[1:] if to_images else rows + columns), dtype


def _is_computed_in(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a program whose result has this data type computes with the tensor as precisely as PyTorch does."""
    return tensor.is_floating_point() and (tensor.dtype != torch.float64 or dtype == torch.float64)


def is_scale_of(scale: Tensor, linear: nn.Linear, to_images: bool) -> bool:
    """Whether it is a number for each column of the result."""
    columns = linear.weight.shape[0]
    return tuple(scale.shape) in ([(columns, 1, 1), (1, columns, 1, 1)] if to_images else [(columns,)])


def is_row_drop(module: nn.Module) -> bool:
    """Whether it is torchvision's StochasticDepth of single images. By name: torchvision need not be there."""
    kind = type(module)
    is_torchvisions = (kind.__module__, kind.__name__) == ("torchvision.ops.stochastic_depth", "StochasticDepth")
    return is_torchvisions and module.mode == "row"


def _row_mask(drop: nn.Module, sizes, dtype: torch.dtype, to_images: bool, device) -> Tensor | None:
    """The row mask: a factor for each row of the result, drawn as the module draws it; None if it drops nothing."""
    if not drop.training or drop.p == 0:
        return None
    ones = torch.ones(sizes[0], *[1] * (len(sizes) - 1), dtype=dtype, device=device)
    mask = drop(ones)
    return (mask[:, 0] if to_images else mask[..., 0]).expand(sizes[:1] + sizes[2:] if to_images else sizes[:-1])


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
