"""Plans, run in one call or, where autograd or others see the operators, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..runtime import plan as plans
from . import conv
from .conv_epilogue import conv2d_epilogue
from .dispatch import has_batched, needs_dispatcher
from .fallback import unfused
from .stitch import stitch


def run(plan: plans.Plan, tensors: list[Tensor]) -> list[Tensor]:
    """The outputs of a plan: in one call (eager fast path), or by the public operators where autograd, tracing or
    transforms need them."""
    if not torch.is_grad_enabled() and not needs_dispatcher(tensors):
        return plans.run(plan, tensors)
    there = list(tensors)
    for step in plan.steps:
        there += _one_by_one(step, [there[i] for i in step.inputs], [there[i] for i in step.into])
    return [there[i] for i in plan.outputs]


def _one_by_one(step: plans.Step, inputs: list[Tensor], into: list[Tensor]) -> Sequence[Tensor]:
    if step.kind == "parts":
        return inputs[0].unbind()
    if step.kind == "conv2d":
        return conv2d_epilogue(inputs[0], inputs[1], inputs[2:], step.what, *plans.geometry_of(step.geometry))
    if step.kind == "stitch":
        results = (unfused if has_batched(inputs) else stitch)(inputs[0], inputs[1:], step.what)
        with torch.no_grad():
            for tensor, result in zip(into, results[len(results) - len(into) :], strict=True):
                tensor.copy_(result)
        return results
    grad, input, weight = inputs
    wanted = bool(step.what[0] & 1), bool(step.what[0] & 2), False
    sizes, geometry = (input.shape, weight.shape), plans.geometry_of(step.geometry)
    grads = conv.conv2d_grads(grad, input, weight, sizes, geometry, wanted)
    return [each for each in grads if each is not None]
