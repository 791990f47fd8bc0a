"""Public functions: convolution, and operators fused with the element-wise operations around them. They normalise
arguments and write the program; ``torch.ops.reformer`` does the work. All can be differentiated any number of times.
Under autocast the convolution is computed in autocast's data type."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import pad
from torch.overrides import handle_torch_function, has_torch_function

from .operators import batch_norm, conv, conv_epilogue, fused_programs
from .operators import stitch as stitch_operator
from .operators.named import ACTIVATION, GEOMETRY, named_operator
from .operators.rows import Rows
from .program import Program
from .program import activation as activation_of
from .runtime import aten
from .runtime.arguments import check_number, check_tensors, shown

_NO_TENSORS: Mapping[str, Tensor] = {}


def pair(name: str, value) -> tuple[int, int]:
    """(height, width), given a number or a sequence of one or two numbers."""
    if type(value) is int:
        return value, value
    if type(value) is tuple and len(value) == 2:
        return value
    if not isinstance(value, (tuple, list)):
        if hasattr(type(value), "__index__") and getattr(value, "ndim", 0) == 0:  # a symbolic or other integer
            return value, value
        raise TypeError(f"conv2d: {name} must be a whole number or two (height, width), got {shown(value)}")
    if len(value) == 2:
        return value[0], value[1]
    if len(value) == 1:
        return value[0], value[0]
    raise ValueError(f"conv2d: {name} must be one number or two (height, width), got {value!r}")


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Tensor:
    """Two-dimensional convolution like :func:`torch.nn.functional.conv2d`, by the kernel chosen for the problem.

    Args:
        input: ``[N, C, H, W]`` or unbatched ``[C, H, W]``; float32, float64, float16 or bfloat16, any strides.
        weight: ``[K, C / groups, R, S]``, of the same data type and device.
        bias: ``[K]`` or None.
        stride, dilation: one number or (height, width).
        padding: one number or (height, width) of zeros on each side, or ``"valid"`` (none) or ``"same"`` (the output is
            as large as the input; stride 1 only; an odd total puts the extra zero at the end).
        groups: number of groups that the channels are divided into.

    Returns:
        ``[N, K, H', W']`` (without N if the input had none), channels_last if the input or the weight is.

    Raises:
        RuntimeError: for sizes that don't fit, with the argument and its value.
        TypeError: if an argument is not a tensor, or not an integer.
        ValueError: for an invalid padding or stride.
    """
    if not is_compiling():
        result = aten.conv2d(input, weight, bias, stride, padding, dilation, groups)
        if result is not None:
            return result
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))):
        if has_torch_function(given := (input, weight, bias)):  # proxies of torch.fx, which record the call
            return handle_torch_function(conv2d, given, *given, stride, padding, dilation, groups)
        check_tensors("conv2d", input=input, weight=weight, **({} if bias is None else {"bias": bias}))
    stride, dilation = pair("stride", stride), pair("dilation", dilation)
    if isinstance(padding, str):
        input, padding = _pad_by_name(input, weight, padding, stride, dilation)
    else:
        padding = pair("padding", padding)
    if input.dim() == 3:
        return conv.conv2d(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    return conv.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _pad_by_name(input, weight, padding: str, stride, dilation) -> tuple[Tensor, tuple[int, int]]:
    """Symmetric part of a named padding, and the input padded by the asymmetric remainder."""
    if padding == "valid":
        return input, (0, 0)
    if padding != "same":
        raise ValueError(f"conv2d: padding must be a number, (height, width), 'same' or 'valid', got {padding!r}")
    if stride != (1, 1):
        raise ValueError(f"conv2d: padding='same' needs stride 1, got {stride}")
    if weight.dim() != 4:
        return input, (0, 0)  # which the operator rejects
    total_h, total_w = (dilation[d] * (weight.shape[2 + d] - 1) for d in (0, 1))
    if total_h % 2 or total_w % 2:
        input = pad(input, (0, total_w % 2, 0, total_h % 2))
    return input, (total_h // 2, total_w // 2)


def _in_order(op: str, program: Program, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    if not isinstance(program, Program):
        raise TypeError(f"{op}: program must be a torch_reformer.program.Program, got {shown(program)}")
    if not isinstance(tensors, Mapping):
        raise TypeError(f"{op}: tensors must be a dictionary of tensors by their names, got {shown(tensors)}")
    ordered = [tensors[name] for name in program.names if name in tensors]
    if not len(ordered) == len(program.names) == len(tensors):
        missing, unknown = program.inputs.keys() - tensors.keys(), tensors.keys() - program.inputs.keys()
        problems = [f"no tensor {', '.join(sorted(missing))}"] if missing else []
        problems += [f"{', '.join(sorted(unknown))} not among the program's inputs"] if unknown else []
        raise ValueError(f"{op}: {'; '.join(problems)}")
    for tensor in ordered:
        if not isinstance(tensor, Tensor):
            check_tensors(op, **tensors)
    return ordered


def _one_or_all(results: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return results[0] if len(results) == 1 else tuple(results)


def stitch(acc: Tensor, program: Program, tensors: Mapping[str, Tensor] = _NO_TENSORS):
    """Run a program over a tensor, in one pass over memory.

    Args:
        acc: ``[N, C, H, W]``, the program's acc. If the program does not read acc, only its size, data type and layout
            matter.
        program: see :mod:`torch_reformer.program`.
        tensors: the program's inputs by name, of any floating-point data type (bool for masks, int64 for keys).

    Returns:
        the program's output, or a tuple of its outputs.

    Raises:
        TypeError: if an argument is not a tensor, or not a program.
        ValueError: if the names are not those of the program's inputs.
        RuntimeError: for sizes or data types that don't fit.
    """
    if not isinstance(acc, Tensor):
        check_tensors("stitch", acc=acc)
    return _one_or_all(stitch_operator.stitch(acc, _in_order("stitch", program, tensors), program.code))


def conv2d_epilogue(
    input: Tensor,
    weight: Tensor,
    program: Program,
    tensors: Mapping[str, Tensor] = _NO_TENSORS,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
):
    """Run a program on the result of a convolution: :func:`stitch` after :func:`torch_reformer.conv2d` without a bias.

    Args:
        input, weight, stride, padding, dilation, groups: as for :func:`torch_reformer.conv2d`, with a batch.
        program, tensors: as for :func:`stitch`. acc may have been rounded to the result's data type.

    Returns:
        the program's output, or a tuple of its outputs.

    Raises:
        The errors of :func:`stitch` and :func:`torch_reformer.conv2d`.
    """
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        check_tensors("conv2d_epilogue", input=input, weight=weight)
    inputs = _in_order("conv2d_epilogue", program, tensors)
    geometry = pair("stride", stride), pair("padding", padding), pair("dilation", dilation), groups
    return _one_or_all(conv_epilogue.conv2d_epilogue(input, weight, inputs, program.code, *geometry))


def linear_epilogue(input: Tensor, weight: Tensor, program: Program, tensors: Mapping[str, Tensor] = _NO_TENSORS):
    """Run a program on the matrix product ``input @ weight.T``.

    Args:
        input: ``[..., C]``.
        weight: ``[K, C]``.
        program: its channels are the K columns of the product, its rows the elements of all other dimensions.
        tensors: by name; full ones are ``[..., K]``, rows ``[...]``.

    Returns:
        the program's output, or a tuple of its outputs, with sizes like those of the inputs.

    Raises:
        The errors of :func:`conv2d_epilogue`.
    """
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        check_tensors("linear_epilogue", input=input, weight=weight)
    inputs = _in_order("linear_epilogue", program, tensors)
    if input.dim() < 1 or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            "linear_epilogue: input must be [..., C] and weight [K, C], "
            f"got sizes {list(input.shape)} and {list(weight.shape)}"
        )
    if "plane" in program.kinds or any(output.per in ("plane", "height") for output in program.outputs):
        raise ValueError("linear_epilogue: a matrix product has no planes or heights, so its program can't have any")
    rows, columns = input.shape[:-1], weight.shape[0]
    for name, kind in zip(program.names, program.kinds, strict=True):
        if kind in ("full", "row"):
            size = (*rows, columns) if kind == "full" else rows
            if tensors[name].shape != torch.Size(size):
                raise RuntimeError(
                    f"linear_epilogue: {name} has size {list(tensors[name].shape)}, but the result needs {list(size)}"
                )
    return _one_or_all(conv_epilogue.linear_epilogue(input, weight, inputs, program, Rows(rows)))


def _check_activation(activation: str) -> None:
    if not isinstance(activation, str):  # it might not be hashable, as a cache key of programs has to be
        activation_of(activation)


def _some(**tensors: Tensor | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


@named_operator(f"Tensor input, Tensor weight, Tensor? bias=None, {GEOMETRY}, *, {ACTIVATION}, Tensor? residual=None")
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
    """Compute ``activation(conv2d(input, weight, bias) + residual)``.

    Args:
        input, weight, bias, stride, padding, dilation, groups: as for :func:`torch_reformer.conv2d`, with a batch.
        activation: none, relu, relu6, leaky_relu (slope 0.01), silu, gelu, gelu_tanh, hardswish, hardsigmoid, sigmoid
            or tanh.
        residual: a tensor of the result's size, or None.

    Returns:
        ``[N, K, H', W']``.

    Raises:
        ValueError: for another activation.
        The errors of :func:`torch_reformer.conv2d`.
    """
    if not isinstance(input, Tensor) and has_torch_function(given := (input, weight, bias, residual)):
        geometry, settings = (stride, padding, dilation, groups), {"activation": activation, "residual": residual}
        return handle_torch_function(conv2d_act, given, input, weight, bias, *geometry, **settings)
    _check_activation(activation)
    tensors = _some(bias=bias, residual=residual)
    program = fused_programs.act(frozenset(tensors), activation)
    return conv2d_epilogue(input, weight, program, tensors, stride, padding, dilation, groups)


def dropout_key(rate: float, device: torch.device) -> Tensor | None:
    """Key of the random numbers of one call; None if the call needs none."""
    if not 0 <= rate <= 1:
        raise ValueError(f"linear_act: dropout must be a probability, got {rate}")
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=device) if 0 < rate < 1 else None


@named_operator(
    f"Tensor input, Tensor weight, Tensor? bias=None, *, {ACTIVATION}, float dropout=0.0, bool training=True, "
    "Tensor? residual=None",
    torch.Tag.nondeterministic_seeded,
)
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
    """Compute ``dropout(activation(input @ weight.T + bias)) + residual``.

    Args:
        input: ``[..., C]``.
        weight: ``[K, C]``; bias: ``[K]`` or None.
        activation: as for :func:`conv2d_act`.
        dropout: the probability with which an element becomes 0 in training; the others are divided by 1 - dropout.
            Each call draws a key for this from PyTorch's generator of the input's device.
        residual: ``[..., K]`` or None.

    Returns:
        ``[..., K]``.

    Raises:
        ValueError: for another activation, or a probability outside of 0 to 1.
    """
    if not isinstance(input, Tensor):
        if has_torch_function(given := (input, weight, bias, residual)):
            settings = {"activation": activation, "dropout": dropout, "training": training, "residual": residual}
            return handle_torch_function(linear_act, given, input, weight, bias, **settings)
        check_tensors("linear_act", input=input)
    _check_activation(activation)
    check_number("linear_act", "dropout", dropout)
    rate = float(dropout) if training else 0.0
    tensors = _some(bias=bias, residual=residual, key=dropout_key(rate, input.device))
    return linear_epilogue(input, weight, fused_programs.linear(frozenset(tensors), activation, rate), tensors)


@named_operator(
    "Tensor input, Tensor weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
    "Tensor? norm_weight=None, Tensor? norm_bias=None, *, bool training, float momentum=0.1, float eps=1e-5, "
    f"{GEOMETRY}, {ACTIVATION}, Tensor? residual=None"
)
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
) -> Tensor:
    """Compute ``activation(batch_norm(conv2d(input, weight, bias)) + residual)``.

    In training, the pass that stores the convolution's result also computes the batch's mean and variance, and a second
    pass normalises and updates the running statistics. In evaluation everything is one pass.

    Args:
        input, weight, bias, stride, padding, dilation, groups: as for :func:`torch_reformer.conv2d`, with a batch.
        running_mean, running_var: ``[K]``; updated in training, read in evaluation. None: the batch's own statistics
            are always used, as by :func:`torch.nn.functional.batch_norm`.
        norm_weight, norm_bias: scale and shift of batch norm, ``[K]`` or None.
        training, momentum, eps: as for :func:`torch.nn.functional.batch_norm`. A momentum that changes from call to
            call should be a tensor of one element, because a number is part of the program.
        activation, residual: as for :func:`conv2d_act`.

    Returns:
        ``[N, K, H', W']``.

    Raises:
        ValueError: in training, as in PyTorch, if there is one value per channel or eps is not positive; in evaluation,
            if eps is negative or there are no running statistics; for another activation.
        The errors of :func:`torch_reformer.conv2d`.
    """
    optional = bias, running_mean, running_var, norm_weight, norm_bias, residual
    if not (
        isinstance(input, Tensor)
        and isinstance(weight, Tensor)
        and all([isinstance(tensor, Tensor) for tensor in optional if tensor is not None])
    ):
        if has_torch_function((input, weight, *optional)):
            return handle_torch_function(
                conv2d_batch_norm_act,
                (input, weight, *optional),
                input,
                weight,
                bias=bias,
                running_mean=running_mean,
                running_var=running_var,
                norm_weight=norm_weight,
                norm_bias=norm_bias,
                training=training,
                momentum=momentum,
                eps=eps,
                stride=stride,
                padding=padding,
                dilation=dilation,
                groups=groups,
                activation=activation,
                residual=residual,
            )
        given = _some(bias=bias, running_mean=running_mean, running_var=running_var)
        given |= _some(norm_weight=norm_weight, norm_bias=norm_bias, residual=residual)
        check_tensors("conv2d_batch_norm_act", input=input, weight=weight, **given)
    _check_activation(activation)
    check_number("conv2d_batch_norm_act", "eps", eps)
    if eps <= 0 and (training or eps < 0):
        allowed = "positive in training" if training else "at least 0"
        raise ValueError(f"conv2d_batch_norm_act: eps must be {allowed}, got {eps}")
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("conv2d_batch_norm_act: evaluation needs running_mean and running_var")
        tensors = _some(bias=bias, mean=running_mean, var=running_var)
        tensors |= _some(scale=norm_weight, shift=norm_bias, residual=residual)
        program = fused_programs.folded(frozenset(tensors), activation, eps)
        return conv2d_epilogue(input, weight, program, tensors, stride, padding, dilation, groups)

    if (running_mean is None) != (running_var is None):
        raise ValueError("conv2d_batch_norm_act: running_mean and running_var must be given both or neither")
    if input.dim() and input.shape[0] == 0:  # as in PyTorch: no moments, and the running statistics do not change
        moments = weight.new_zeros(2, weight.shape[0])
        given = _some(scale=norm_weight, shift=norm_bias, residual=residual)
        tensors = given | {"mean": moments[0], "squares": moments[1]}
        result = conv2d_act(input, weight, bias, stride, padding, dilation, groups, activation="none")
        return stitch(result, fused_programs.normalise(frozenset(given), activation, eps), tensors)
    geometry = pair("stride", stride), pair("padding", padding), pair("dilation", dilation), groups
    operands = input, weight, bias, norm_weight, norm_bias, residual
    return batch_norm.train(*operands, running_mean, running_var, activation, eps, momentum, geometry)
