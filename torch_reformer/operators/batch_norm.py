"""Convolution followed by batch norm in training, as one autograd node.

Built from conv2d_epilogue and stitch there would be two nodes, which pass each other gradients as large as the result.
With one node, the forward is the convolution with the moments of its channels, and a pass that normalises. The backward
is a reduction pass (gradients of scale, shift, mean and variance), a pass that computes the gradient of the
convolution's result, including the terms of mean and variance, and the convolution's own two gradients. Forward and
backward are one operator call each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ..program import Program, channel, full, rows, store
from ..program import sum as sum_of
from ..program.derivative import derivative
from ..runtime import aten
from ..runtime import plan as plans
from ..runtime.arguments import is_number, shown
from . import autocast, conv, fake, fused_programs, run_plan
from .conv_epilogue import conv2d_epilogue
from .dispatch import SingleLevelFunction, any_autocast, needs_dispatcher, without_autocast
from .fused_operator import numbers
from .stitch import stitch

_TENSORS = ("input", "weight", "bias", "scale", "shift", "residual", "running_mean", "running_var", "momentum")
_PARAMETERS = ("scale", "shift", "residual")
_DIFFERENTIATED = ("input", "weight", "bias", *_PARAMETERS)
_RUNNING = ("running_mean", "running_var")


def _among(names: frozenset[str], selected: tuple[str, ...]) -> frozenset[str]:
    """Intersection as a list comprehension, which torch.compile traces faster than an intersection of sets."""
    return frozenset([name for name in selected if name in names])


class Settings(NamedTuple):
    activation: str
    eps: float
    momentum: float | None  # None: it is a tensor, or there are no running statistics
    running: tuple[torch.dtype, ...]  # data types of the running statistics, if there are any
    # if autocast casts the weight: the copy's data type and the weight's own
    cast: tuple[torch.dtype, torch.dtype] | None

    def programs(self, names: frozenset[str]) -> tuple[Program, Program]:
        """Programs of the forward: the one that runs on the convolution's result, and the one that then runs with its
        moments. names: of the given tensors."""
        of_norm = _among(names, _PARAMETERS)
        moments = fused_programs.moments(_among(names, ("bias",)))
        if not self.running:
            return moments, fused_programs.normalise(of_norm, self.activation, self.eps)
        return moments, fused_programs.normalise_and_update(
            of_norm, self.activation, self.eps, self.momentum, self.running
        )


class _Rule:
    """Programs and plans for all calls with these settings and tensors of these names. needed: those of input, weight,
    bias and _PARAMETERS whose gradients are needed.

    In the programs of the backward, acc is the convolution's result, output_0 the forward's result and grad_0 the
    gradient of the latter. In `apply`, the pass that computes acc's gradient, grad_0 is the gradient of the sum before
    the activation if there is a residual, since this is the residual's gradient, too.
    """

    def __init__(self, names: tuple[str, ...], settings: Settings, needed: frozenset[str]):
        self.names, self.needed, self.cast = names, needed, settings.cast
        present = frozenset(names)
        of_norm = _among(present, _PARAMETERS)
        self.moments, self.normalise = settings.programs(present)
        of_acc = bool(needed & {"input", "weight", "bias"})
        statistics = ("mean", "squares") if of_acc else ()
        wanted = (*statistics, *(name for name in _PARAMETERS if name in needed))
        plain = fused_programs.normalise(of_norm, settings.activation, settings.eps)
        self.reduce = derivative(plain, wanted, acc_is_there=True)
        self.apply = self._apply(of_norm, settings) if of_acc else None
        read = {name for program in (self.reduce.backward, self.apply) if program for name in program.inputs}
        self.saved = [name for name in ("output_0", "acc", "scale", "shift", "residual") if name in read]
        self.forward = functools.lru_cache(1024)(self._forward)
        self.backward = functools.lru_cache(1024)(self._backward)

    def _apply(self, names: frozenset[str], settings: Settings) -> Program:
        activation = settings.activation
        if "residual" in self.needed:
            names, activation = names - {"residual"}, "none"
        rule = derivative(fused_programs.normalise(names, activation, settings.eps), ("acc",), acc_is_there=True)
        direct = rule.backward.outputs[rule.wanted["acc"]].value
        # Mean and sum of squared differences are sums over the channel.
        grad = direct + channel("grad_mean") / rows()
        grad = grad + 2 * channel("grad_squares") * (full("acc") - channel("mean"))
        return Program(store(grad), *([sum_of(grad)] if "bias" in self.needed else []))

    def _forward(self, geometry: int) -> plans.Plan:
        """Plan of the forward. Inputs: the tensors `names`. Outputs: the result, the convolution's result, its moments,
        and the cast weight if there is a cast."""
        steps = plans.Plan(len(self.names))
        at = {name: place for place, name in enumerate(self.names)}
        if self.cast:
            at["weight"] = conv.cast_step(steps, at["weight"], self.cast[0])
        biases = [at["bias"]] if "bias" in at else []
        acc, moments = steps.conv2d(self.moments.code, geometry, at["input"], at["weight"], biases)
        at["mean"], at["squares"] = steps.parts(moments, 2)
        running = [at[name] for name in _RUNNING if name in at]
        tensors = [at[name] for name in self.normalise.inputs]
        result, *_ = steps.stitch(self.normalise.code, acc, tensors, running)
        return steps.give(result, acc, moments, *([at["weight"]] if self.cast else []))

    def _backward(self, geometry: int) -> plans.Plan:
        """Plan of the backward. Inputs: the result's gradient, input, weight (cast), moments and the saved tensors.
        Outputs: the needed gradients."""
        names = ["grad_0", "input", "weight", "moments", *self.saved]
        steps = plans.Plan(len(names))
        at = {name: place for place, name in enumerate(names)}
        at["mean"], at["squares"] = steps.parts(at["moments"], 2)
        like = at.get("acc", at["grad_0"])
        grads = dict.fromkeys(self.reduce.passed, at["grad_0"])
        if reduce := self.reduce.backward:
            results = steps.stitch(reduce.code, like, [at[name] for name in reduce.inputs])
            grads |= {name: results[place] for name, place in self.reduce.wanted.items()}
        if apply := self.apply:
            at["grad_mean"], at["grad_squares"] = grads["mean"], grads["squares"]
            at["grad_0"] = grads.get("residual", at["grad_0"])
            of_acc, *sums = steps.stitch(apply.code, like, [at[name] for name in apply.inputs])
            operands = [name for name in ("input", "weight") if name in self.needed]
            wanted = "input" in operands, "weight" in operands
            results = steps.conv2d_grads(wanted, geometry, of_acc, at["input"], at["weight"])
            grads |= zip(operands, results, strict=True)
            if self.cast and "weight" in operands:
                grads["weight"] = conv.cast_step(steps, grads["weight"], self.cast[1])
            if sums:
                grads["bias"] = sums[0]
        return steps.give(*(grads[name] for name in _TENSORS if name in self.needed))


@functools.lru_cache(512)
def _rule(given: tuple[bool, ...], settings: Settings, needed: tuple[bool, ...]) -> _Rule:
    names = tuple(name for name, there in zip(_TENSORS, given, strict=True) if there)
    return _Rule(names, settings, frozenset(name for name, need in zip(_TENSORS, needed, strict=False) if need))


class _Train(SingleLevelFunction):
    @staticmethod
    def forward(ctx, settings, geometry, cast, *tensors):
        rule = _rule(tuple([tensor is not None for tensor in tensors]), settings, ctx.needs_input_grad[3:-3])
        present = [tensor for tensor in tensors if tensor is not None]
        # train() has checked that this is the eager fast path.
        result, acc, moments, *copy = plans.run(rule.forward(geometry), present)
        input, weight, bias, scale, shift, residual, *_ = tensors
        by_name = {"output_0": result, "acc": acc, "scale": scale, "shift": shift, "residual": residual}
        ctx.rule, ctx.geometry, ctx.cast = rule, geometry, cast
        (weight,) = copy or [weight]
        ctx.save_for_backward(input, weight, bias, moments, *[by_name[name] for name in rule.saved])
        return result

    @staticmethod
    def backward(ctx, grad):
        rule = ctx.rule
        input, weight, bias, moments, *saved = ctx.saved_tensors
        grads = _gradients(rule, ctx.geometry, grad, input, weight, bias, moments, saved, ctx.cast)
        remaining = iter(grads)
        # The inputs of forward: three settings, the tensors, and those that only the running statistics depend on.
        needed = ctx.needs_input_grad[3:-3]
        return None, None, None, *[next(remaining) if need else None for need in needed], None, None, None


def _gradients(
    rule: _Rule, geometry: int, grad, input, weight, bias, moments, saved, cast: autocast.CastWeight | None
) -> list[Tensor]:
    """Needed gradients, given the result's gradient. weight: the cast copy if `cast` is given."""
    with without_autocast():
        if torch.is_grad_enabled() and rule.apply:  # acc and moments are functions of the operands
            weight = weight if cast is None else cast.linked(weight)
            biases = [] if bias is None else [bias]
            acc, moments = conv2d_epilogue(input, weight, biases, rule.moments.code, *plans.geometry_of(geometry))
            saved = [acc if name == "acc" else tensor for name, tensor in zip(rule.saved, saved, strict=True)]
        return run_plan.run(rule.backward(geometry), [grad, input, weight, moments, *saved])


class _TrainOperator:
    """Autograd node like _Train, implemented in C++ (fused_operator.py), for tensors of these names."""

    def __init__(self, given: tuple[bool, ...], settings: Settings, geometry: int):
        self.given, self.settings, self.geometry = given, settings, geometry
        self.names = [name for name, there in zip(_TENSORS, given, strict=True) if there]

    def rule(self, number: int) -> _Rule:
        """Rule for tensors of which those in the bit set `number` require gradients."""
        needed = {self.names[i] for i in numbers(number)}
        return _rule(self.given, self.settings, tuple([name in needed for name in _DIFFERENTIATED]))

    def write(self, number: int):
        rule, count = self.rule(number), len(self.names)
        result, acc, moments, copy = range(count, count + 4)
        at = {name: place for place, name in enumerate(self.names)} | {"output_0": result, "acc": acc}
        weight = at["weight"] if self.settings.cast is None else copy
        bias = [at["bias"]] if "bias" in at else []
        saved = [at["input"], weight, moments, *bias, *[at[name] for name in rule.saved]]
        originals = [] if self.settings.cast is None else [at["weight"]]
        backward = functools.partial(self.backward, rule)
        derive = functools.partial(self.derive, rule)
        plan = rule.forward(self.geometry)
        return aten.library.Differentiated(plan, 1, [False], saved, originals, [], backward, derive)

    def backward(self, saves: _Rule, given: int, number: int):
        rule = self.rule(number)
        if not set(rule.saved) <= set(saves.saved):
            return None
        others = 4 + ("bias" in self.names)  # after the gradient, input, weight and moments
        saved = [1, 2, 3, *[others + saves.saved.index(name) for name in rule.saved]]
        places = [i for i in numbers(number) if self.names[i] in rule.needed]
        return rule.backward(self.geometry), [0, *saved], places

    def derive(self, rule: _Rule, grads, saved, originals, wanted, sizes, result_sizes) -> list[Tensor | None]:
        input, weight, moments, *saved = saved
        bias = saved.pop(0) if "bias" in self.names else None
        cast = None if self.settings.cast is None else autocast.CastWeight(originals[0], weight.dtype)
        grads = _gradients(rule, self.geometry, grads[0], input, weight, bias, moments, saved, cast)
        by_name = dict(zip([name for name in _TENSORS if name in rule.needed], grads, strict=True))
        return [by_name.get(name) if want else None for name, want in zip(self.names, wanted, strict=True)]


@functools.lru_cache(512)
def _train_operator(given: tuple[bool, ...], settings: Settings, geometry: int):
    return aten.library.FusedOperator(_TrainOperator(given, settings, geometry).write, 1)


_apply = _Train.apply


def _check_count(input: Tensor, weight: Tensor, geometry) -> None:
    """Raise ``ValueError`` if a channel of the result has a single value: batch norm needs two."""
    stride, padding, dilation, _ = geometry
    if input.dim() != 4 or weight.dim() != 4 or input.shape[0] > 1:
        return
    for d in (0, 1):  # the common case has two positions; otherwise compute the size
        if input.shape[2 + d] + 2 * padding[d] - dilation[d] * (weight.shape[2 + d] - 1) > stride[d]:
            return
    size = fake.output_size("conv2d_batch_norm_act", input.shape, weight.shape, *geometry)
    if size[2] * size[3] == 1:
        raise ValueError(
            f"conv2d_batch_norm_act: training needs more than one value a channel, got a result of {list(size)}"
        )


def train(input, weight, bias, scale, shift, residual, running_mean, running_var, activation, eps, momentum, geometry):
    """:func:`torch_reformer.conv2d_batch_norm_act` in training, for a batch of at least one element; geometry in
    pairs."""
    _check_count(input, weight, geometry)
    is_tensor = isinstance(momentum, Tensor)
    if running_mean is not None and not is_tensor and not is_number(momentum):
        raise ValueError(
            "conv2d_batch_norm_act: momentum must be a number or a tensor of one element, got " + shown(momentum)
        )
    running = () if running_mean is None else (running_mean.dtype, running_var.dtype)
    tensors = (input, weight, bias, scale, shift, residual, running_mean, running_var)
    tensors = (*tensors, momentum if running and is_tensor else None)
    written = [tensor for tensor in (running_mean, running_var) if tensor is not None]
    settings = Settings(activation, eps, momentum if running and not is_tensor else None, running, None)
    if (
        needs_dispatcher(tensors)
        or not all([tensor.is_contiguous() for tensor in written])
        or (number := plans.geometry_number(*geometry)) is None
    ):
        return _by_operators(dict(zip(_TENSORS, tensors, strict=True)), settings, geometry)
    cast = autocast.CastWeight.of(input, weight) if weight.dim() == 4 else None  # the convolution rejects other ranks
    if cast is not None:
        settings = settings._replace(cast=(cast.dtype, weight.dtype))
    (input,) = autocast.autocast_cast(input)
    if aten.library is not None:
        present = [input, *[tensor for tensor in tensors[1:] if tensor is not None]]
        results = _train_operator(tuple([tensor is not None for tensor in tensors]), settings, number)(present)
        if results is not None:
            return results[0]
    return _apply(settings, number, cast, input, *tensors[1:])


@functools.lru_cache(512)
def _operator_of(
    given: tuple[bool, ...], geometry, activation: str, eps: float, momentum: float, running, cast
) -> Callable | None:
    number = plans.geometry_number(*geometry)
    if number is None:
        return None
    settings = Settings(activation, eps, momentum if running else None, running, cast)
    return _train_operator(given, settings, number)


def train_at_once(tensors, geometry, activation: str, eps: float, momentum: float) -> Tensor | None:
    """Fast variant of train() with as few checks as possible: None if the library is missing or the call is not a plain
    one.

    tensors: input, weight, bias, running mean and variance, scale, shift, residual. geometry: a module's, in pairs.
    """
    input, weight, bias, mean, var, scale, shift, residual = tensors
    if aten.library is None or is_compiling() or type(input) is not Tensor or type(momentum) is not float or eps <= 0:
        return None
    if input.dim() != 4 or input.shape[0] == 0 or not (mean is None or mean.is_contiguous() and var.is_contiguous()):
        return None
    _check_count(input, weight, geometry)
    cast = None
    if any_autocast():
        dtype = autocast.autocast_type(weight, input.device)
        cast = None if dtype is None else (dtype, weight.dtype)
        (input,) = autocast.autocast_cast(input)
    ordered = input, weight, bias, scale, shift, residual, mean, var, None
    given = tuple([tensor is not None for tensor in ordered])
    running = () if mean is None else (mean.dtype, var.dtype)
    operator = _operator_of(given, geometry, activation, eps, momentum, running, cast)
    if operator is None:
        return None
    results = operator([tensor for tensor in ordered if tensor is not None])
    return None if results is None else results[0]


def _by_operators(tensors: dict[str, Tensor | None], settings: Settings, geometry) -> Tensor:
    named = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    moments, normalise = settings.programs(frozenset(named))
    biases = [named["bias"]] if "bias" in named else []
    acc, statistics = conv2d_epilogue(named["input"], named["weight"], biases, moments.code, *geometry)
    named["mean"], named["squares"] = statistics.unbind()
    inputs = [named[name] for name in normalise.names]
    result, *running = stitch(acc, inputs, normalise.code)
    with torch.no_grad():
        for name, value in zip(_RUNNING, running, strict=bool(running)):
            named[name].copy_(value)
    return result
