"""Runnable problem: its tensors, this package's operator on them, and PyTorch's own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from ..problem import TORCH_DTYPES, ConvProblem
from ..runtime import gpu, native

_ops = torch.ops.reformer
MEMORY_FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


def usable_device(name: str, index: int = 0) -> torch.device:
    """The CPU, or the GPU with this index unless `name` has one. Raises ``ValueError`` if torch has no such device."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{name!r} is not a device: give cpu or cuda") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ValueError(f"convolutions run on cpu and cuda, not on {name}")
    device = torch.device("cuda", index if device.index is None else device.index)
    if device.index >= torch.cuda.device_count():
        raise ValueError(f"torch sees {torch.cuda.device_count()} GPUs here: there is no {device}")
    return device


def device_name(device: torch.device) -> str:
    """Device name as the selector knows it: ``cpu-avx512-2t`` (with torch's number of threads), ``sm_90`` or
    ``sm_90:H100``."""
    return native.device(None) if device.type == "cpu" else gpu.device(device.index)


class Workload:
    """Random operands of one problem (standard normal, seeded), in its data type and layout."""

    def __init__(self, problem: ConvProblem, device: str | torch.device = "cpu", seed: int = 0):
        if problem.dtype not in TORCH_DTYPES:
            raise ValueError(f"{problem}: tensors of data type {problem.dtype} can't be convolved")
        self.problem = problem
        self.device = torch.device(device)
        generator = torch.Generator(self.device).manual_seed(seed)

        def tensor(*size: int) -> Tensor:
            values = torch.randn(size, generator=generator, device=device).to(TORCH_DTYPES[problem.dtype])
            return values.contiguous(memory_format=MEMORY_FORMATS[problem.layout]) if len(size) == 4 else values

        self.input = tensor(*problem.input_size)
        self.weight = tensor(*problem.weight_size)
        self.output_grad = tensor(*problem.output_size)
        self.bias = tensor(problem.k) if problem.bias else None

    def double(self) -> Workload:
        """Same operands in fp64, for a reference result."""
        work = self._with_operands(Tensor.double)
        work.problem = self.problem.replace(dtype="FP64")
        work.bias = None if self.bias is None else self.bias.double()
        return work

    def tf32(self) -> Workload:
        """Same fp32 operands rounded to tf32. A kernel that rounds its operands, in whichever way, adds no error then,
        so it has to be as accurate as an fp32 kernel."""
        return self._with_operands(lambda t: ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32))

    def _with_operands(self, change: Callable[[Tensor], Tensor]) -> Workload:
        work = copy.copy(self)
        for name in ("input", "weight", "output_grad"):
            setattr(work, name, change(getattr(self, name)))
        return work

    def reformer(self) -> Tensor:
        """Result of this package's operator for the problem's direction."""
        p = self.problem
        if p.direction == "F":
            return _ops.conv2d.default(self.input, self.weight, self.bias, *p.geometry)
        if p.direction == "B":
            return _ops.conv2d_input_grad.default(p.input_size, self.weight, self.output_grad, *p.geometry)
        return _ops.conv2d_weight_grad.default(p.weight_size, self.input, self.output_grad, *p.geometry)

    def torch(self) -> Tensor:
        """Result of PyTorch's operator: torch.conv2d, or the part of its backward that computes this gradient."""
        p = self.problem
        if p.direction == "F":
            return torch.conv2d(self.input, self.weight, self.bias, *p.geometry)
        stride, padding, dilation, groups = p.geometry
        mask = [p.direction == "B", p.direction == "W", False]
        grads = torch.ops.aten.convolution_backward.default(
            self.output_grad, self.input, self.weight, None, stride, padding, dilation, False, (0, 0), groups, mask
        )
        return grads[0 if p.direction == "B" else 1]
