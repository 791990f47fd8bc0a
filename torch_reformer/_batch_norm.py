"""A convolution and batch norm in training, as one step of autograd.

Made of conv2d_epilogue and stitch it would be two, which hand each other gradients of the result's size. As one, the
backward is a pass that reduces (to the gradients of scale, shift, mean and variance), a pass that gives the
convolution's gradient, to which mean and variance add theirs, and the convolution's own two.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from . import _programs, _register, _register_epilogue
from .epilogue import Program, channel, full, rows, store
from .epilogue import sum as sum_of
from .epilogue.derivative import derivative

_PARAMETERS = ("scale", "shift", "residual")


class _Plan:
    """The programs for all calls with these tensors (of bias, scale, shift, residual) and settings. needed: whose
    gradients are; "acc" is the convolution's result.

    In the backward's programs acc is the convolution's result, too, output_0 what the forward gave, and grad_0 the
    gradient of that; of acc's gradient the pass `apply` has it in place of the residual's, which is that of the sum
    before the activation."""

    def __init__(self, names: frozenset[str], activation: str, eps: float, needed: frozenset[str]):
        of_norm = names - {"bias"}
        self.moments = _programs.moments(names & {"bias"})
        self.normalise = _programs.normalise(of_norm, activation, eps)
        self.statistics = ("mean", "squares") if "acc" in needed else ()
        wanted = (*self.statistics, *(name for name in _PARAMETERS if name in needed))
        reduce = derivative(self.normalise, wanted, acc_is_there=True)
        self.reduce, self.places = reduce.backward, reduce.wanted
        self.apply = self._apply(names, activation, eps, needed) if "acc" in needed else None
        read = {name for program in (self.reduce, self.apply) if program for name in program.inputs}
        self.saved = [name for name in ("output_0", "acc", "scale", "shift", "residual") if name in read]

    def _apply(self, names, activation: str, eps: float, needed) -> Program:
        normalise = self.normalise
        if "residual" in needed:
            normalise = _programs.normalise(names - {"bias", "residual"}, "none", eps)
        rule = derivative(normalise, ("acc",), acc_is_there=True)
        direct = rule.backward.outputs[rule.wanted["acc"]].value
        # Mean and sum of squared differences are sums over the channel.
        grad = direct + channel("grad_mean") / rows()
        grad = grad + 2 * channel("grad_squares") * (full("acc") - channel("mean"))
        return Program(store(grad), *([sum_of(grad)] if "bias" in needed else []))


@functools.lru_cache(1024)
def _plan(names: frozenset[str], activation: str, eps: float, needed: frozenset[str]) -> _Plan:
    return _Plan(names, activation, eps, needed)


@functools.lru_cache(64)
def _given(bias: bool, scale: bool, shift: bool, residual: bool) -> frozenset[str]:
    found = {"bias": bias, "scale": scale, "shift": shift, "residual": residual}
    return frozenset(name for name, there in found.items() if there)


@functools.lru_cache(64)
def _needed(input: bool, weight: bool, bias: bool, scale: bool, shift: bool, residual: bool) -> frozenset[str]:
    acc = {"acc"} if input or weight or bias else set()
    return _given(bias, scale, shift, residual) | acc


def _in_order(program: Program, tensors: dict[str, Tensor | None]) -> list[Tensor]:
    return [tensors[name] for name in program.inputs]


def _update_running(running_mean: Tensor | None, running_var: Tensor | None, mean, squares, momentum, count: int):
    """Batch norm's running statistics, from a batch's mean and sum of squared differences. Where gradients are off."""
    if running_mean is None or running_var is None:
        return
    var = squares / (count - 1)
    if running_mean.dtype != mean.dtype:
        mean, var = mean.to(running_mean.dtype), var.to(running_var.dtype)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var, momentum)


def _checked_count(result: Tensor) -> int:
    """The values a channel, of which batch norm needs two."""
    count = result.shape[0] * result.shape[2] * result.shape[3]
    if count == 1:
        raise ValueError(
            f"conv2d_batch_norm_act: training needs more than one value a channel, got a result of {list(result.shape)}"
        )
    return count


class _Train(torch.autograd.Function):
    @staticmethod
    def forward(ctx, settings, geometry, input, weight, bias, scale, shift, residual):
        activation, eps, momentum, running_mean, running_var = settings
        plan = _plan(
            _given(bias is not None, scale is not None, shift is not None, residual is not None),
            activation,
            eps,
            _needed(*ctx.needs_input_grad[2:]),
        )
        biases = [] if bias is None else [bias]
        acc, moments = _register_epilogue.run_conv2d(input, weight, biases, plan.moments.code, geometry)
        count = _checked_count(acc)
        mean, squares = moments.unbind()
        _update_running(running_mean, running_var, mean, squares, momentum, count)
        tensors = {"mean": mean, "squares": squares, "scale": scale, "shift": shift, "residual": residual}
        (result,) = _register_epilogue.run_stitch(acc, _in_order(plan.normalise, tensors), plan.normalise.code)
        tensors |= {"acc": acc, "output_0": result}
        ctx.plan, ctx.geometry = plan, geometry
        ctx.save_for_backward(input, weight, bias, moments, *(tensors[name] for name in plan.saved))
        return result

    @staticmethod
    def backward(ctx, grad):
        plan, geometry = ctx.plan, ctx.geometry
        _, _, of_input, of_weight, of_bias, *_ = ctx.needs_input_grad
        input, weight, bias, moments, *saved = ctx.saved_tensors
        tensors = dict(zip(plan.saved, saved, strict=True))
        if torch.is_grad_enabled() and plan.apply:  # they are functions of the operands
            biases = [] if bias is None else [bias]
            tensors["acc"], moments = _register_epilogue.conv2d_epilogue(
                input, weight, biases, plan.moments.code, *geometry
            )
        tensors["mean"], tensors["squares"] = moments.unbind()
        tensors["grad_0"] = grad
        like = tensors.get("acc", grad)
        found = _register_epilogue.stitch(like, _in_order(plan.reduce, tensors), plan.reduce.code)
        grads = {name: found[place] for name, place in plan.places.items()}
        input_grad = weight_grad = bias_grad = None
        if plan.apply:
            tensors["grad_mean"], tensors["grad_squares"] = (grads[name] for name in plan.statistics)
            tensors["grad_0"] = grads.get("residual", grad)
            acc_grad, *sums = _register_epilogue.stitch(like, _in_order(plan.apply, tensors), plan.apply.code)
            bias_grad = sums[0] if sums else None
            sizes, wanted = (input.shape, weight.shape), (of_input, of_weight, False)
            input_grad, weight_grad, _ = _register.conv2d_grads(acc_grad, input, weight, sizes, geometry, wanted)
        return None, None, input_grad, weight_grad, bias_grad, *(grads.get(name) for name in _PARAMETERS)


_apply = super(torch.autograd.Function, _Train).apply


def train(input, weight, bias, scale, shift, residual, running_mean, running_var, activation, eps, momentum, geometry):
    """:func:`torch_reformer.conv2d_batch_norm_act` in training, of at least one image; geometry in pairs."""
    tensors = (input, weight, bias, scale, shift, residual)
    if _register.needs_dispatcher(tensors):
        given = zip(("bias", "scale", "shift", "residual"), tensors[2:], strict=True)
        named = {name: tensor for name, tensor in given if tensor is not None}
        names = frozenset(named)
        program = _programs.moments(names & {"bias"})
        biases = [] if bias is None else [bias]
        acc, moments = _register_epilogue.conv2d_epilogue(input, weight, biases, program.code, *geometry)
        count = _checked_count(acc)
        with torch.no_grad():
            _update_running(running_mean, running_var, *moments.detach().unbind(), momentum, count)
        named["mean"], named["squares"] = moments.unbind()
        program = _programs.normalise(names - {"bias"}, activation, eps)
        return _register_epilogue.stitch(acc, _in_order(program, named), program.code)[0]
    settings = activation, eps, momentum, running_mean, running_var
    input, weight = _register.autocast_cast(input, weight)
    return _apply(settings, geometry, input, weight, bias, scale, shift, residual)
