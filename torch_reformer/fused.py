"""Operators with what surrounds them fused in: functions that write the program and call
``torch.ops.reformer.conv2d_epilogue`` or ``torch.ops.reformer.stitch``. Autograd differentiates them any number of
times; under autocast the convolution is computed in autocast's data type.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from . import _batch_norm, _programs, _register_epilogue, epilogue
from ._rows import Rows
from .ops import pair

_NO_TENSORS: Mapping[str, Tensor] = {}


def _in_order(op: str, program: epilogue.Program, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    if tensors.keys() != program.inputs.keys():
        missing, unknown = program.inputs.keys() - tensors.keys(), tensors.keys() - program.inputs.keys()
        said = [f"no tensor {', '.join(sorted(missing))}"] if missing else []
        said += [f"{', '.join(sorted(unknown))} not among the program's inputs"] if unknown else []
        raise ValueError(f"{op}: {'; '.join(said)}")
    return [tensors[name] for name in program.inputs]


def _one_or_all(results: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return results[0] if len(results) == 1 else tuple(results)


def stitch(acc: Tensor, program: epilogue.Program, tensors: Mapping[str, Tensor] = _NO_TENSORS):
    """Runs a program over a tensor, in one pass over memory.

    Args:
        acc: ``[N, C, H, W]``, what the program calls acc. If it doesn't, only its size, data type and layout matter.
        program: see :mod:`torch_reformer.epilogue`.
        tensors: the program's inputs by name, of any floating-point data type (bool for masks, int64 for keys).

    Returns:
        The program's output, or a tuple of them.

    Raises:
        ValueError: if the names are not those of the program's inputs.
        RuntimeError: for sizes or data types that don't fit.
    """
    return _one_or_all(_register_epilogue.stitch(acc, _in_order("stitch", program, tensors), program.code))


def conv2d_epilogue(
    input: Tensor,
    weight: Tensor,
    program: epilogue.Program,
    tensors: Mapping[str, Tensor] = _NO_TENSORS,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
):
    """Runs a program on a convolution's result: :func:`stitch` of :func:`torch_reformer.conv2d` without a bias.

    Args:
        input, weight, stride, padding, dilation, groups: as for :func:`torch_reformer.conv2d`, with a batch.
        program, tensors: as for :func:`stitch`. acc may have been rounded to the result's data type.

    Returns:
        The program's output, or a tuple of them.

    Raises:
        As :func:`stitch` and :func:`torch_reformer.conv2d`.
    """
    inputs = _in_order("conv2d_epilogue", program, tensors)
    geometry = pair("stride", stride), pair("padding", padding), pair("dilation", dilation), groups
    return _one_or_all(_register_epilogue.conv2d_epilogue(input, weight, inputs, program.code, *geometry))


def linear_epilogue(
    input: Tensor, weight: Tensor, program: epilogue.Program, tensors: Mapping[str, Tensor] = _NO_TENSORS
):
    """Runs a program on a matrix product ``input @ weight.T``.

    Args:
        input: ``[..., C]``.
        weight: ``[K, C]``.
        program: its channels are the K columns, its rows the elements of all dimensions of the input but the last.
        tensors: full ones are ``[..., K]``, rows ``[...]``.

    Returns:
        The program's output, or a tuple of them; sizes as those of the inputs.

    Raises:
        As :func:`conv2d_epilogue`.
    """
    if input.dim() < 1 or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            "linear_epilogue: input must be [..., C] and weight [K, C], "
            f"got sizes {list(input.shape)} and {list(weight.shape)}"
        )
    rows, columns = input.shape[:-1], weight.shape[0]
    for name, kind in program.inputs.items():
        if kind in ("full", "row") and name in tensors:
            size = (*rows, columns) if kind == "full" else rows
            if tensors[name].shape != torch.Size(size):
                raise RuntimeError(
                    f"linear_epilogue: {name} has size {list(tensors[name].shape)}, but the result needs {list(size)}"
                )
    inputs = _in_order("linear_epilogue", program, tensors)
    return _one_or_all(_register_epilogue.linear_epilogue(input, weight, inputs, program, Rows(rows)))


def _some(**tensors: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def conv2d_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    activation: str = "relu",
    residual: Tensor | None = None,
) -> Tensor:
    """``activation(conv2d(input, weight, bias) + residual)``.

    Args:
        input, weight, bias, stride, padding, dilation, groups: as for :func:`torch_reformer.conv2d`, with a batch.
        activation: none, relu, relu6, leaky_relu (slope 0.01), silu, gelu, gelu_tanh, hardswish, hardsigmoid,
            sigmoid or tanh.
        residual: of the result's size, or None.

    Returns:
        ``[N, K, H', W']``.

    Raises:
        ValueError: for another activation.
        As :func:`torch_reformer.conv2d`.
    """
    tensors = _some(bias=bias, residual=residual)
    program = _programs.act(frozenset(tensors), activation)
    return conv2d_epilogue(input, weight, program, tensors, stride, padding, dilation, groups)


def dropout_key(rate: float, device: torch.device) -> Tensor | None:
    """For the random numbers of one call, if it needs some."""
    if not 0 <= rate <= 1:
        raise ValueError(f"linear_act: dropout must be a probability, got {rate}")
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=device) if 0 < rate < 1 else None


def linear_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    training: bool = True,
    residual: Tensor | None = None,
) -> Tensor:
    """``dropout(activation(input @ weight.T + bias)) + residual``.

    Args:
        input: ``[..., C]``.
        weight: ``[K, C]``; bias: ``[K]`` or None.
        activation: as for :func:`conv2d_act`.
        dropout: the probability with which an element becomes 0 in training; the others are divided by 1 - dropout.
            Which ones is drawn anew at each call, from PyTorch's generator of the input's device.
        residual: ``[..., K]`` or None.

    Returns:
        ``[..., K]``.

    Raises:
        ValueError: for another activation, or a probability outside of 0 to 1.
    """
    rate = float(dropout) if training else 0.0
    tensors = _some(bias=bias, residual=residual, key=dropout_key(rate, input.device))
    return linear_epilogue(input, weight, _programs.linear(frozenset(tensors), activation, rate), tensors)


def conv2d_batch_norm_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    *,
    training: bool,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    activation: str = "relu",
    residual: Tensor | None = None,
    uses: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """``activation(batch_norm(conv2d(input, weight, bias)) + residual)``.

    In training the batch's mean and variance are gathered from the convolution's result, and a second pass normalises
    and updates the running statistics. In evaluation everything is one pass.

    Args:
        input, weight, bias, stride, padding, dilation, groups: as for :func:`torch_reformer.conv2d`, with a batch.
        running_mean, running_var: ``[K]``; updated in training, read in evaluation. None: as for
            :func:`torch.nn.functional.batch_norm`, the batch's own are used always.
        norm_weight, norm_bias: ``[K]`` or None, batch norm's scale and shift.
        training, momentum, eps: as for :func:`torch.nn.functional.batch_norm`. A momentum that changes from call to
            call should be a tensor of one element: a number is part of the program.
        activation, residual: as for :func:`conv2d_act`.
        uses: by how many operators the result is used. For several there is a tensor for each, of the same memory, so
            that the backward adds up their gradients as it reads them. None of them may be changed in place.

    Returns:
        ``[N, K, H', W']``, or a tuple of as many as there are uses, if those are several.

    Raises:
        ValueError: as PyTorch, in training if there is one value a channel or eps is not positive, in evaluation if eps
            is negative; in evaluation without running statistics; for another activation.
        As :func:`torch_reformer.conv2d`.
    """
    if eps <= 0 and (training or eps < 0):
        allowed = "positive in training" if training else "at least 0"
        raise ValueError(f"conv2d_batch_norm_act: eps must be {allowed}, got {eps}")
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("conv2d_batch_norm_act: evaluation needs running_mean and running_var")
        tensors = _some(bias=bias, mean=running_mean, var=running_var)
        tensors |= _some(scale=norm_weight, shift=norm_bias, residual=residual)
        program = _programs.folded(frozenset(tensors), activation, eps)
        result = conv2d_epilogue(input, weight, program, tensors, stride, padding, dilation, groups)
        return result if uses == 1 else (result,) * uses

    if (running_mean is None) != (running_var is None):
        raise ValueError("conv2d_batch_norm_act: running_mean and running_var must be given both or neither")
    if input.shape[0] == 0:  # as PyTorch: no moments, and the running statistics stay
        moments = weight.new_zeros(2, weight.shape[0])
        given = _some(scale=norm_weight, shift=norm_bias, residual=residual)
        tensors = given | {"mean": moments[0], "squares": moments[1]}
        result = conv2d_act(input, weight, bias, stride, padding, dilation, groups, activation="none")
        result = stitch(result, _programs.normalise(frozenset(given), activation, eps), tensors)
        return result if uses == 1 else (result,) * uses
    geometry = pair("stride", stride), pair("padding", padding), pair("dilation", dilation), groups
    tensors = input, weight, bias, norm_weight, norm_bias, residual
    return _batch_norm.train(*tensors, running_mean, running_var, activation, eps, momentum, geometry, uses)
