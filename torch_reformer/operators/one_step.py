"""Calls of operators with programs below autograd. They run as plans (runtime/plan.py) of one step; the public operator
is called only if more than autograd has to see it, or if it has to report invalid arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ..runtime import plan as plans
from . import conv
from .dispatch import below_autograd, needs_dispatcher

_stitch = torch.ops.reformer.stitch.default
_conv2d_epilogue = torch.ops.reformer.conv2d_epilogue.default


@functools.lru_cache(512)
def alone(
    code: tuple[int, ...], tensors: int, geometry: int = -1, cast: torch.dtype | None = None
) -> plans.Plan | None:
    """Plan with the single program of this code, after a convolution of this geometry unless that is -1; None if the
    arguments are invalid. cast: the weight's data type for the convolution; the cast weight is the last result."""
    operands = 1 if geometry < 0 else 2
    plan = plans.Plan(operands + tensors)
    places = range(operands, operands + tensors)
    try:
        if geometry < 0:
            plan.give(*plan.stitch(code, 0, places))
        elif cast is None:
            plan.give(*plan.conv2d(code, geometry, 0, 1, places))
        else:
            weight = conv.cast_step(plan, 1, cast)
            plan.give(*plan.conv2d(code, geometry, 0, weight, places), weight)
        return plan if plan.number >= 0 else None
    except (IndexError, ValueError):
        return None


def run_stitch(acc: Tensor, tensors: Sequence[Tensor], code: tuple[int, ...]) -> list[Tensor]:
    operands = [acc, *tensors]
    plan = None if needs_dispatcher(operands) else alone(code, len(tensors))
    if plan is not None:
        return plans.run(plan, operands)
    with below_autograd():
        return _stitch(acc, tensors, code)


def run_conv2d(
    input: Tensor, weight: Tensor, tensors: Sequence[Tensor], code: tuple[int, ...], geometry, cast: torch.dtype | None
) -> tuple[list[Tensor], Tensor]:
    """Outputs of the program, and the weight that the convolution used (cast if `cast` is given). geometry: stride,
    padding, dilation and groups."""
    operands = [input, weight, *tensors]
    in_pairs = len(geometry[0]) == len(geometry[1]) == len(geometry[2]) == 2
    if in_pairs and not needs_dispatcher(operands):
        number = plans.geometry_number(*geometry)
        plan = None if number is None else alone(code, len(tensors), number, cast)
        if plan is not None:
            results = plans.run(plan, operands)
            return results, weight if cast is None else results.pop()
    weight = weight if cast is None else weight.to(cast)
    with below_autograd():
        return _conv2d_epilogue(input, weight, tensors, code, *geometry), weight
