"""Modules that use this package's kernels, and conversion of existing models."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.compiler import is_exporting
from torch.jit import is_tracing
from torch.overrides import handle_torch_function, has_torch_function

from . import functional
from .operators import batch_norm
from .problem import TORCH_DTYPES
from .runtime.arguments import check_module


class Conv2d(torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d` computed by :func:`torch_reformer.conv2d`: same arguments, same state dict.

    Padding modes other than ``"zeros"`` pad first, as PyTorch does.
    """

    def _get_name(self) -> str:  # for the module's repr
        name = super()._get_name()
        return f"torch_reformer.{name}" if type(self) in (Conv2d, FusedConv2d) else name

    def _conv_forward(self, input, weight, bias):
        geometry = self.stride, self.padding, self.dilation, self.groups
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            geometry = self.stride, 0, self.dilation, self.groups
        return functional.conv2d(input, weight, bias, *geometry)  # type: ignore[arg-type]  # of tuples of two


class FusedConv2d(Conv2d):
    """A convolution of a model that :func:`torch_reformer.fuse` compiles. An exported or traced model has PyTorch's
    convolution instead of it, so that ONNX can express the model, and loading it needs no import of this package."""

    def _conv_forward(self, input, weight, bias):
        if is_tracing() or is_exporting():
            return super(Conv2d, self)._conv_forward(input, weight, bias)
        return super()._conv_forward(input, weight, bias)


class Conv2dAct(torch.nn.Conv2d):
    """``activation(conv(input) + residual)`` by :func:`torch_reformer.conv2d_act`, with the arguments and state dict of
    :class:`torch.nn.Conv2d`.

    Args:
        activation: see :func:`torch_reformer.conv2d_act`.
    """

    def __init__(self, *args, activation: str = "relu", **kwargs):
        super().__init__(*args, **kwargs)
        _check_padding(self)
        self.activation = activation

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        geometry = self.stride, self.padding, self.dilation, self.groups
        return functional.conv2d_act(
            input, self.weight, self.bias, *geometry, activation=self.activation, residual=residual
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"


class Conv2dBatchNormAct(torch.nn.Module):
    """``activation(norm(conv(input)) + residual)`` by :func:`torch_reformer.conv2d_batch_norm_act`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as for
            :class:`torch.nn.Conv2d`; no bias by default.
        eps, momentum, affine, track_running_stats: as for :class:`torch.nn.BatchNorm2d`.
        activation: see :func:`torch_reformer.conv2d_act`.

    Its state dict has the convolution's parameters under ``conv`` and batch norm's under ``norm``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = False,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        activation: str = "relu",
        device=None,
        dtype=None,
    ):
        super().__init__()
        kind = {"device": device, "dtype": dtype}
        self.conv = Conv2d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, **kind)
        _check_padding(self.conv)
        self.norm = torch.nn.BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats, **kind)
        self.activation = activation

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        return conv_norm_act(self.conv, self.norm, input, self.activation, residual)

    def extra_repr(self) -> str:
        return f"activation={self.activation}"


class LinearAct(torch.nn.Linear):
    """``dropout(activation(linear(input))) + residual`` by :func:`torch_reformer.linear_act`, with the arguments and
    state dict of :class:`torch.nn.Linear`.

    Args:
        activation: see :func:`torch_reformer.conv2d_act`.
        dropout: the probability with which an element becomes 0 in training.
    """

    def __init__(self, *args, activation: str = "relu", dropout: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.activation = activation
        self.dropout = dropout

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        return functional.linear_act(
            input,
            self.weight,
            self.bias,
            activation=self.activation,
            dropout=self.dropout,
            training=self.training,
            residual=residual,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}, dropout={self.dropout}"


def _check_padding(conv: torch.nn.Conv2d) -> None:
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        raise ValueError(
            f"{type(conv).__name__}: padding must be numbers of zeros, got {conv.padding!r} of {conv.padding_mode!r}"
        )


def conv_norm_act(
    conv: torch.nn.Conv2d,
    norm: torch.nn.BatchNorm2d,
    input: Tensor,
    activation: str,
    residual: Tensor | None = None,
) -> Tensor:
    """``activation(norm(conv(input)) + residual)`` of two modules with their settings; counts the batch in training."""
    if not isinstance(input, Tensor) and has_torch_function((input, residual)):  # such as proxies of torch.fx
        return handle_torch_function(conv_norm_act, (input, residual), conv, norm, input, activation, residual)
    momentum, in_training, tracks = norm.momentum, norm.training, norm.track_running_stats
    conv_parameters, norm_parameters, buffers = conv._parameters, norm._parameters, norm._buffers
    # Attribute access of modules is slow. A parameter missing from the dictionaries is computed
    # (torch.nn.utils.parametrize).
    weight = conv_parameters["weight"] if "weight" in conv_parameters else conv.weight
    bias = conv_parameters["bias"] if "bias" in conv_parameters else conv.bias
    scale = norm_parameters["weight"] if "weight" in norm_parameters else norm.weight
    shift = norm_parameters["bias"] if "bias" in norm_parameters else norm.bias
    running_mean = buffers["running_mean"] if "running_mean" in buffers else norm.running_mean
    if in_training and tracks and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if momentum is None:  # a cumulative average: all batches have equal weight
            momentum = 1.0 / norm.num_batches_tracked.double()
    if momentum is None:
        momentum = 0.0
    training = in_training or running_mean is None
    updates = not in_training or tracks
    mean, var = (running_mean, norm.running_var) if updates else (None, None)
    tensors = input, weight, bias, mean, var, scale, shift, residual
    geometry = conv.stride, conv.padding, conv.dilation, conv.groups
    if training:
        result = batch_norm.train_at_once(tensors, geometry, activation, norm.eps, momentum)
        if result is not None:
            return result
    stride, padding, dilation, groups = geometry
    return functional.conv2d_batch_norm_act(
        *(input, weight, bias, mean, var, scale, shift),
        training=training,
        momentum=momentum,
        eps=norm.eps,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        activation=activation,
        residual=residual,
    )


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Result of :func:`convert`: names of the converted modules, and the reasons for leaving others as they are."""

    converted: list[str]
    left: dict[str, str]

    def __str__(self) -> str:
        lines = [f"converted {len(self.converted)} Conv2d, left {len(self.left)}"]
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def _reason_to_leave(module: torch.nn.Module) -> str | None:
    if type(module) is not torch.nn.Conv2d:
        return f"it is a {type(module).__name__}, whose own behaviour would be lost"
    if torch.nn.parameter.is_lazy(module.weight):
        return "its weight is not initialised yet"
    if module.weight.dtype not in TORCH_DTYPES.values():
        return f"its data type {module.weight.dtype} is not supported"
    return None


def convert(model: torch.nn.Module, channels_last: bool = False) -> Conversion:
    """Convert every eligible :class:`torch.nn.Conv2d` of a model to :class:`Conv2d`, in place.

    Parameters, hooks, training mode and names stay the same: state dicts, optimizers and checkpoints are not affected.

    Args:
        model: any module, also a Conv2d itself.
        channels_last: also convert the model's parameters to ``torch.channels_last``, which is usually faster; the
            inputs should then have that memory format, too.

    Returns:
        the converted modules, and the reason for every Conv2d (or module derived from it) that was left as it is.

    Raises:
        TypeError: if `model` is not a module.
    """
    check_module("convert", model)
    return convert_to(Conv2d, model, channels_last)


def convert_to(kind: type[Conv2d], model: torch.nn.Module, channels_last: bool) -> Conversion:
    """Convert a model as convert() does, to this kind of module."""
    converted, left = [], {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Conv2d) or isinstance(module, Conv2d):
            continue
        shown = name or "(the model itself)"
        if reason := _reason_to_leave(module):
            left[shown] = reason
        else:
            module.__class__ = kind  # keeps parameters, hooks and references to the module alive
            converted.append(shown)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # PyTorch's annotations lack it
    return Conversion(converted, left)


def unconvert(model: torch.nn.Module) -> list[str]:
    """Make every :class:`Conv2d` of a model :class:`torch.nn.Conv2d` again, in place: undo :func:`convert`.

    Parameters, hooks, training mode, names and memory formats stay as they are.

    Returns:
        the names of these modules.

    Raises:
        TypeError: if `model` is not a module.
    """
    check_module("unconvert", model)
    return unconvert_from((Conv2d, FusedConv2d), model)


def unconvert_from(kinds: tuple[type[Conv2d], ...], model: torch.nn.Module) -> list[str]:
    """Make modules of exactly these kinds PyTorch's again."""
    names = []
    for name, module in model.named_modules():
        if type(module) in kinds:
            module.__class__ = torch.nn.Conv2d
            names.append(name or "(the model itself)")
    return names
