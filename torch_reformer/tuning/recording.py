"""Which convolution problems a piece of code meets."""

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
    """As the choice knows it; torch's name of one that is not here (meta, a fake tensor's): nothing is chosen there."""
    is_here = device.type == "cpu" or device.type == "cuda" and device.index < torch.cuda.device_count()
    return device_name(device) if is_here else str(device)


def _met(op, args, kwargs) -> tuple[ConvProblem, str] | None:
    """The problem that a call of one of the operators solves, and the device where; None if it is empty: no kernel is
    chosen for it then."""
    schema = op._schema.arguments
    # PyTorch leaves out trailing arguments that have their default value.
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
    """A context manager that counts the problems this package solves inside it, those of backward passes and of
    compiled graphs included, each with the device where it ran, as :func:`torch_reformer.explain` takes it. A CUDA
    graph's replays make no calls that could be counted::

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
        """Lets Dynamo compile: under other modes it leaves functions as they are."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DIRECTIONS and (met := _met(func, args, kwargs)):
            self._counts[met] += 1
        return func(*args, **kwargs)
