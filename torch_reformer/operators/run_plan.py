"""Execution of plans: in one call or, where autograd or other code has to see the operators, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..runtime import plan as plans
from . import conv
from .conv_epilogue import conv2d_epilogue
from .dispatch import below_autograd, has_batched, needs_dispatcher, without_autocast
from .fallback import unfused
from .stitch import stitch

RunStep = Callable[[plans.Step, list[Tensor], list[Tensor]], Sequence[Tensor]]


def run(plan: plans.Plan, tensors: list[Tensor]) -> list[Tensor]:
    """Outputs of a plan: in one call on the eager fast path, or by the public operators where autograd, tracing or
    transforms need them."""
    if not torch.is_grad_enabled() and not needs_dispatcher(tensors):
        return plans.run(plan, tensors)
    return _by_steps(plan, list(tensors), _by_operators)


def step_by_step(plan: plans.Plan, tensors: list[Tensor]) -> list[Tensor]:
    """Outputs of a compiled graph's plan while a TorchDispatchMode observes the operators. Empties the list."""
    inputs = list(tensors)
    tensors.clear()
    with below_autograd(), without_autocast():
        return _by_steps(plan, inputs, _of_compiled_graph)


def _by_steps(plan: plans.Plan, tensors: list[Any], run_step: RunStep) -> list[Tensor]:
    """Run the steps one by one. tensors: the inputs; extended by all results, with None for freed tensors."""
    for step, frees in zip(plan.steps, plan.frees, strict=True):
        tensors += run_step(step, [tensors[i] for i in step.inputs], [tensors[i] for i in step.into])
        for i in frees:
            tensors[i] = None
    return [tensors[i] for i in plan.outputs]


def _of_compiled_graph(step: plans.Step, inputs: list[Tensor], into: list[Tensor]) -> Sequence[Tensor]:
    """Run a compiled graph's step. Its programs read and write tensors by placements, which only plans know."""
    if step.kind == "stitch" or step.into:
        return plans.run(plans.alone(step, gives_results=True), [*inputs, *into])
    return _by_operators(step, inputs, into)


def _by_operators(step: plans.Step, inputs: list[Tensor], into: list[Tensor]) -> Sequence[Tensor]:
    if step.call:
        return step.call.run(inputs)
    if step.kind == "parts":
        return inputs[0].unbind()[: len(step.made)]
    if step.kind == "view":
        sizes, strides, offset = step.view()
        return [inputs[0].as_strided(sizes, strides, inputs[0].storage_offset() + offset)]
    if step.kind == "conv2d":
        geometry, *code = step.what
        return conv2d_epilogue(inputs[0], inputs[1], inputs[2:], tuple(code), *plans.geometry_of(geometry))
    if step.kind == "stitch":
        results = (unfused if has_batched(inputs) else stitch)(inputs[0], inputs[1:], step.what)
        with torch.no_grad():
            for tensor, result in zip(into, results[len(results) - len(into) :], strict=True):
                tensor.copy_(result)
        return results
    (grad, input, weight), (geometry, bits) = inputs, step.what
    wanted = bool(bits & 1), bool(bits & 2), False
    sizes = input.shape, weight.shape
    grads = conv.conv2d_grads(grad, input, weight, sizes, plans.geometry_of(geometry), wanted)
    return [grad for grad in grads if grad is not None]
