"""Recording of the convolution problems that a piece of code runs."""

from __future__ import annotations

import collections

import torch

from ..operators.dispatch import TorchDispatchMode
from ..operators.fake import result_is_channels_last
from ..problem import TORCH_DTYPES, ConvProblem
from .workload import device_name

_ops = torch.ops.reformer
_DIRECTIONS = {
    _ops.conv2d.default: "F",
    _ops.conv2d_epilogue.default: "F",
    _ops.conv2d_input_grad.default: "B",
    _ops.conv2d_weight_grad.default: "W",
}
_DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def _device(device: torch.device) -> str:
    """Device name as the selector knows it; torch's own name if the device is not present (meta, or a fake tensor's),
    as no kernel is chosen there."""
    is_here = device.type == "cpu" or device.type == "cuda" and device.index < torch.cuda.device_count()
    return device_name(device) if is_here else str(device)


def _met(op, args, kwargs) -> tuple[ConvProblem, str] | None:
    """Problem that a call of one of the operators solves, and its device; None if a tensor is empty, as no kernel is
    chosen then."""
    schema = op._schema.arguments
    # PyTorch omits trailing arguments that have their default value.
    values = {argument.name: argument.default_value for argument in schema}
    values |= {argument.name: value for argument, value in zip(schema, args, strict=False)} | kwargs
    operands = [values[name] for name in ("input", "weight", "grad_output") if name in values]
    if any(operand.numel() == 0 for operand in operands):
        return None
    n, c, h, w = values["input_size"] if "input_size" in values else values["input"].shape
    k, _, r, s = values["weight_size"] if "weight_size" in values else values["weight"].shape
    pad_h, pad_w = values["padding"]
    stride_h, stride_w = values["stride"]
    dilation_h, dilation_w = values["dilation"]
    problem = ConvProblem(
        *(n, c, h, w, k, r, s, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, values["groups"]),
        direction=_DIRECTIONS[op],
        dtype=_DTYPE_NAMES[operands[0].dtype],
        layout="NHWC" if result_is_channels_last(*operands) else "NCHW",
        bias=values.get("bias") is not None,
    )
    return problem, _device(operands[0].device)


class record_problems(TorchDispatchMode):
    """Context manager that counts the convolution problems solved inside it, including those of backward passes and
    compiled graphs. Each is counted with the device where it ran, in the form that :func:`torch_reformer.explain`
    takes. Replays of CUDA graphs make no calls and are not counted::

        with torch_reformer.record_problems() as problems:
            model(images).sum().backward()
        for (problem, device), calls in problems.items():
            print(calls, problem, device)
    """

    def __init__(self):
        super().__init__()
        self._counts: collections.Counter[tuple[ConvProblem, str]] = collections.Counter()

    def __enter__(self) -> collections.Counter[tuple[ConvProblem, str]]:
        super().__enter__()
        return self._counts

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo compile: under other modes it does not compile functions."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DIRECTIONS and (met := _met(func, args, kwargs)):
            self._counts[met] += 1
        return func(*args, **kwargs)
