"""Layer norm whose result has the data type that its reader wants, as one step of autograd.

On a GPU the forward and the backward are a pass over memory each (csrc/hip/kernels/layer_norm.hip). Elsewhere they are
PyTorch's, in fp32: those of a half precision data type take weight and bias of that type and give their gradients in
it, and on the CPU round the mean.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..runtime import aten
from ..runtime import plan as plans
from .dispatch import apply_of, needs_dispatcher
from .fused_operator import flags, numbers

_library = torch.library.Library("reformer", "IMPL")
_forward = torch.ops.reformer._layer_norm.default
_backward = torch.ops.reformer._layer_norm_backward.default
_backward_of_pytorch = torch.ops.aten.native_layer_norm_backward.default


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps, dtype):
        result, statistics = _forward(input, weight, bias, eps, dtype)
        ctx.save_for_backward(input, statistics, weight, bias)
        return result

    @staticmethod
    def backward(ctx, grad):
        input, statistics, weight, bias = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        # In a second derivative the statistics are functions of the input, which PyTorch's own backward knows.
        if torch.is_grad_enabled() or needs_dispatcher((grad,)):
            return *_by_pytorch(grad, input, statistics, weight, bias, needed), None, None
        if weight is not None and bias is not None and weight.dtype != bias.dtype:
            weight, bias = _wide(weight, bias)  # both gradients have the weight's data type
        found = iter(_backward(grad, input, statistics, weight, _bits(needed)))
        return *(next(found) if need else None for need in needed), None, None


def _bits(wanted) -> int:
    return wanted[0] + 2 * wanted[1] + 4 * wanted[2]


def _by_pytorch(grad, input, statistics, weight, bias, wanted) -> tuple[Tensor | None, ...]:
    grad, x, *parameters = _wide(grad, input, weight, bias)
    return _backward_of_pytorch(grad, x, x.shape[-1:], *_mean_and_rstd(x, statistics), *parameters, list(wanted))


class _Operator:
    """The same as one step of autograd in C++ (csrc/aten/fused_operator.h). given: whether weight and bias are."""

    def __init__(self, given: tuple[bool, bool], eps: float, dtype: torch.dtype):
        self.eps, self.dtype = eps, dtype
        self.places = [0, *[1 + sum(given[:i]) if there else None for i, there in enumerate(given)]]
        self.count = 1 + sum(given)

    def of_all(self, flags) -> tuple[bool, ...]:
        """What is said of the tensors that there are, for input, weight and bias."""
        return tuple([place is not None and flags[place] for place in self.places])

    def write(self, number: int):
        plan = plans.Plan(self.count)
        plan.give(*plan.aten(_forward, (*self.places, self.eps, self.dtype), lengths=[2]))
        saved = [0, self.count + 1, *range(1, self.count)]
        return aten.library.Differentiated(plan, 1, [False], saved, [], [], self.backward, self.derive)

    def backward(self, given: int, number: int):
        wanted = self.of_all(flags(number, self.count))
        plan = plans.Plan(2 + self.count)  # the gradient, input, statistics, and what parameters there are
        weight = None if self.places[1] is None else 3
        arguments = 0, 1, 2, weight, _bits(wanted)
        plan.give(*plan.aten(_backward, arguments, lengths=[sum(wanted)]))
        return plan, list(range(2 + self.count)), numbers(number)

    def derive(self, grads, saved, originals, wanted, sizes, result_sizes):
        input, statistics, *parameters = saved
        given = [input, *parameters]
        weight, bias = [None if place is None else given[place] for place in self.places[1:]]
        found = _by_pytorch(grads[0], input, statistics, weight, bias, self.of_all(wanted))
        return [found[i] if wanted[place] else None for i, place in enumerate(self.places) if place is not None]


@functools.lru_cache(512)
def _operator(given: tuple[bool, bool], eps: float, dtype: torch.dtype):
    return aten.library.FusedOperator(_Operator(given, eps, dtype).write, 1, 1)


_apply = apply_of(_LayerNorm)


def layer_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """:func:`torch.nn.functional.layer_norm` over the last dimension, whose result has this data type.

    Args:
        input: ``[..., C]``.
        weight, bias: ``[C]``, of any data type, or None.
    """
    if aten.library is not None and (weight is None or bias is None or weight.dtype == bias.dtype):
        given = [tensor for tensor in (input, weight, bias) if tensor is not None]
        results = _operator((weight is not None, bias is not None), eps, dtype)(given)
        if results is not None:
            return results[0]
    return _apply(input, weight, bias, eps, dtype)


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    """In fp64 if one of them is, else in fp32."""
    dtype = (
        torch.float64 if any(each is not None and each.dtype == torch.float64 for each in tensors) else torch.float32
    )
    return [None if each is None else each.to(dtype) for each in tensors]


def _mean_and_rstd(input: Tensor, statistics: Tensor) -> list[Tensor]:
    return [each.view(*input.shape[:-1], 1).to(input.dtype) for each in statistics]


def _forward_unfused(input, weight, bias, eps, dtype):
    input, *parameters = _wide(input, weight, bias)
    result, mean, rstd = torch.native_layer_norm(input, input.shape[-1:], *parameters, eps)
    return [result.to(dtype), torch.stack((mean.flatten(), rstd.flatten()))]


def _backward_unfused(grad, input, statistics, weight, wanted):
    types = input.dtype, *2 * (torch.float32 if weight is None else weight.dtype,)
    grad, input, weight = _wide(grad, input, weight)
    mean, rstd = _mean_and_rstd(input, statistics)
    found = [None] * 3
    if wanted & 1:
        alone = [True, False, False]
        found[0] = _backward_of_pytorch(grad, input, input.shape[-1:], mean, rstd, weight, None, alone)[0]
    rows = grad.reshape(-1, grad.shape[-1])
    if wanted & 2:
        found[1] = (rows * ((input - mean) * rstd).reshape(rows.shape)).sum(0)
    if wanted & 4:
        found[2] = rows.sum(0)
    return [each.to(dtype) for each, dtype in zip(found, types, strict=True) if each is not None]


for _device in ("CPU", "CUDA"):
    _library.impl("_layer_norm_unfused", _forward_unfused, _device)
    _library.impl("_layer_norm_backward_unfused", _backward_unfused, _device)
