"""Layer norm in a half precision data type, with gradients of weight and bias that are not rounded to it.

PyTorch's kernels compute in fp32 inside, but take weight and bias of the input's data type, and give their gradients in
it: sums over all rows, which would be rounded when they are done. A program adds them up in fp32 instead, of the same
tensors that PyTorch's kernel would read for them. Mean and deviation are fp32 on GPUs; on the CPU PyTorch rounds them.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from . import _register, fused
from .epilogue import Program, full, row
from .epilogue import sum as sum_of

_backward = torch.ops.aten.native_layer_norm_backward.default


@functools.cache
def _sums() -> Program:
    grad = full("grad")
    return Program(sum_of(grad * ((full("input") - row("mean")) * row("rstd"))), sum_of(grad))


def _of_parameters(grad: Tensor, input: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    rows = 1, mean.numel(), 1
    grad, input = (tensor.reshape(*rows, input.shape[-1]).permute(0, 3, 1, 2) for tensor in (grad, input))
    tensors = {"grad": grad, "input": input, "mean": mean.reshape(rows), "rstd": rstd.reshape(rows)}
    return fused.stitch(input, _sums(), tensors)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        ctx.size = input.shape[-1:]
        result, mean, rstd = torch.native_layer_norm(input, ctx.size, *_cast(input, weight, bias), eps)
        ctx.save_for_backward(input, mean, rstd, weight, bias)
        return result

    @staticmethod
    def backward(ctx, grad):
        input, mean, rstd, *parameters = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        others = input, ctx.size, mean, rstd, *_cast(input, *parameters)
        # Of a second derivative mean and rstd are functions of the input, which PyTorch's own backward knows.
        if torch.is_grad_enabled() or _register.is_batched(grad):
            return *_backward(grad, *others, wanted), None
        of_input = _backward(grad, *others, [True, False, False])[0] if wanted[0] else None
        sums = _of_parameters(grad, input, mean, rstd) if wanted[1] or wanted[2] else (None, None)
        return of_input, *(each if want else None for each, want in zip(sums, wanted[1:], strict=True)), None


def _cast(input: Tensor, *parameters: Tensor | None) -> list[Tensor | None]:
    return [None if parameter is None else parameter.to(input.dtype) for parameter in parameters]


def layer_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """:func:`torch.nn.functional.layer_norm` over the last dimension, whose result has the input's data type.

    Args:
        input: ``[..., C]``.
        weight, bias: ``[C]``, of any data type, or None.
    """
    return _LayerNorm.apply(input, weight, bias, eps)
