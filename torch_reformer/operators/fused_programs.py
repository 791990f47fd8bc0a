"""The programs that the fused operators run, written once for each set of tensors and settings."""

from __future__ import annotations

import functools

import torch

from .. import program as ep
from ..program import Program
from ..program.values import plain


def _remembered(write):
    """Caches the programs that a function writes. For torch.compile they are constants: to trace how they are written
    would take a second each."""
    cached = functools.lru_cache(512)(write)
    constant = torch.compiler.assume_constant_result(functools.wraps(write)(lambda *arguments: cached(*arguments)))

    @functools.wraps(write)
    def program(*arguments) -> Program:
        if torch.compiler.is_compiling():
            return constant(*[plain(each) if isinstance(each, (int, float)) else each for each in arguments])
        return cached(*arguments)

    return program


def _biased(names: frozenset[str]) -> ep.Value:
    return ep.acc() + ep.channel("bias") if "bias" in names else ep.acc()


@_remembered
def act(names: frozenset[str], activation: str) -> Program:
    """activation(acc + bias + residual)"""
    value = _biased(names)
    if "residual" in names:
        value = value + ep.full("residual")
    return Program(ep.store(ep.activation(activation)(value)))


@_remembered
def sums() -> Program:
    """sum(acc), over each channel"""
    return Program(ep.sum(ep.acc()))


@_remembered
def linear(
    names: frozenset[str], activation: str, rate: float, types: tuple[torch.dtype | None, ...] = (None,)
) -> Program:
    """dropout(activation(acc + bias)) * scale * keep + residual, in each of these data types; None is the result's.
    keep: of the rows."""
    value = ep.activation(activation)(_biased(names))
    if rate == 1:
        value = value * 0
    elif rate:
        value = value * ep.select(ep.random("key") < rate, 0, 1 / (1 - rate))  # NaN stays NaN
    if "scale" in names:
        value = value * ep.channel("scale")
    if "keep" in names:
        value = value * ep.row("keep")
    if "residual" in names:
        value = value + ep.full("residual")
    return Program(*(ep.store(value, dtype) for dtype in types))


@_remembered
def cast(dtype: torch.dtype) -> Program:
    """acc in another data type"""
    return Program(ep.store(ep.acc(), dtype))


@_remembered
def moments(names: frozenset[str]) -> Program:
    """acc + bias, and its channels' mean and sum of squared differences"""
    value = _biased(names)
    return Program(ep.store(value), ep.moments(value, per="channel"))


def _normalised(value, var, names: frozenset[str], activation: str, eps: float) -> ep.Output:
    scale = ep.rsqrt(var + eps)
    if "scale" in names:
        scale = scale * ep.channel("scale")
    value = (value - ep.channel("mean")) * scale
    if "shift" in names:
        value = value + ep.channel("shift")
    if "residual" in names:
        value = value + ep.full("residual")
    return ep.store(ep.activation(activation)(value))


@_remembered
def normalise(names: frozenset[str], activation: str, eps: float) -> Program:
    """activation(scale * (acc - mean) / sqrt(squares / rows + eps) + shift + residual)"""
    var = ep.channel("squares") / ep.rows()
    return Program(_normalised(ep.acc(), var, names, activation, eps))


@_remembered
def normalise_and_update(
    names: frozenset[str], activation: str, eps: float, momentum: float | None, types: tuple[torch.dtype, torch.dtype]
) -> Program:
    """The same, and the running statistics after the batch, of these data types. momentum: None if it is a tensor."""
    (output,) = normalise(names, activation, eps).outputs
    share = ep.scalar("momentum") if momentum is None else momentum
    batch = ep.channel("mean"), ep.channel("squares") / (ep.rows() - 1)
    outputs = []
    for name, value, dtype in zip(("running_mean", "running_var"), batch, types, strict=True):
        running = ep.channel(name)
        outputs.append(ep.store(running + share * (value - running), dtype, per="channel"))
    return Program(output, *outputs)


@_remembered
def folded(names: frozenset[str], activation: str, eps: float) -> Program:
    """The same of acc + bias, with a given variance."""
    return Program(_normalised(_biased(names), ep.channel("var"), names, activation, eps))
