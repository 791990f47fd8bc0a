"""Operator stitch: a program over tensors. Registered for autograd, and with a fast path for calls from this
package."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from ..runtime import aten
from . import fallback
from .backward_rule import backward_rule, lacks_derivative
from .dispatch import SingleLevelFunction, in_eager_functorch, is_transformed, needs_dispatcher, needs_grad
from .fallback import unfused
from .fused_operator import MOST, program_operator
from .one_step import run_stitch

_library = torch.library.Library("reformer", "IMPL")
fallback.register(_library)
_stitch = torch.ops.reformer.stitch.default


class _Stitch(SingleLevelFunction):
    """Autograd node of a program. Its outputs are the program's, followed by the values saved for the backward."""

    @staticmethod
    def forward(ctx, code, acc, *tensors):
        rule = backward_rule("stitch", tuple(code), ctx.needs_input_grad[1:], True, acc.dtype == torch.float64)
        ctx.size, ctx.dtype = acc.shape, acc.dtype
        outputs = run_stitch(acc, tensors, rule.forward.code)
        rule.save(ctx, acc, tensors, outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        return None, *ctx.rule.gradients(ctx, ctx.saved_tensors, grads, stitch)


_apply = _Stitch.apply


def _derive(rule, operator, saves_for, grads, saved, originals, wanted, sizes, result_sizes):
    """Gradients by differentiable operators, as fused_operator.py needs them."""
    names = rule.names[1:]
    shapes = {name: torch.Size(sizes[1 + names.index(name)]) for name in rule.scalars}
    size = torch.Size(result_sizes[rule.stored])
    ctx = SimpleNamespace(wide=operator.wide(), size=size, dtype=operator.types[0], scalar_shapes=shapes)
    gradients = rule.gradients(ctx, list(saved), grads, stitch)
    return [grad if want else None for grad, want in zip(gradients, wanted, strict=True)]


def _by_library(acc, tensors, program):
    """Run as one autograd node in C++; None where that is not possible."""
    if aten.library is None or len(tensors) >= MOST or lacks_derivative("stitch", program):
        return None
    operands = [acc, *tensors]
    return program_operator(program, tuple([tensor.dtype for tensor in operands]), None, None, False, _derive)(operands)


def _stitch_kernel(acc, tensors, program):
    if is_transformed():
        return unfused(acc, tensors, program)
    if needs_grad(acc, *tensors):
        if lacks_derivative("stitch", tuple(program)):
            return unfused(acc, tensors, program)
        return list(_apply(program, acc, *tensors))[: program[2]]
    return run_stitch(acc, tensors, tuple(program))


_library.impl(_stitch, _stitch_kernel, "Autograd")


def stitch(acc, tensors, program):
    if needs_dispatcher((acc, *tensors)):
        return (unfused if in_eager_functorch() else _stitch)(acc, tensors, program)
    results = _by_library(acc, tensors, program)
    if results is not None:
        return results
    return _stitch_kernel(acc, tensors, program)
