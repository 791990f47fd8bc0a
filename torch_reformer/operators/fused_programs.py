"""Programs of the fused operators, cached for each set of tensors and settings."""

from __future__ import annotations

import functools

import torch

from .. import program
from ..program import Program
from ..program.values import plain
from .dispatch import assume_constant_result


def _remembered(write):
    """Cache the programs that a function writes. For torch.compile they are constants: tracing the function that writes
    a program would take a second per program."""
    cached = functools.lru_cache(512)(write)
    constant = assume_constant_result(functools.wraps(write)(lambda *arguments: cached(*arguments)))

    @functools.wraps(write)
    def remembered(*arguments) -> Program:
        if torch.compiler.is_compiling():
            return constant(*[plain(value) if isinstance(value, (int, float)) else value for value in arguments])
        return cached(*arguments)

    return remembered


def _biased(names: frozenset[str]) -> program.Value:
    return program.acc() + program.channel("bias") if "bias" in names else program.acc()


@_remembered
def act(names: frozenset[str], activation: str) -> Program:
    """activation(acc + bias + residual)"""
    value = _biased(names)
    if "residual" in names:
        value = value + program.full("residual")
    return Program(program.store(program.activation(activation)(value)))


@_remembered
def sums() -> Program:
    """Sum of acc over each channel."""
    return Program(program.sum(program.acc()))


@_remembered
def linear(names: frozenset[str], activation: str, rate: float) -> Program:
    """dropout(activation(acc + bias)) + residual"""
    value = program.activation(activation)(_biased(names))
    if rate == 1:
        value = value * 0
    elif rate:
        value = value * program.select(program.random("key") < rate, 0, 1 / (1 - rate))  # NaN stays NaN
    if "residual" in names:
        value = value + program.full("residual")
    return Program(program.store(value))


@_remembered
def cast(dtype: torch.dtype) -> Program:
    """acc in another data type."""
    return Program(program.store(program.acc(), dtype))


@_remembered
def moments(names: frozenset[str]) -> Program:
    """acc + bias, and the mean and sum of squared differences of its channels."""
    value = _biased(names)
    return Program(program.store(value), program.moments(value, per="channel"))


def _normalised(value, var, names: frozenset[str], activation: str, eps: float) -> program.Output:
    scale = program.rsqrt(var + eps)
    if "scale" in names:
        scale = scale * program.channel("scale")
    value = (value - program.channel("mean")) * scale
    if "shift" in names:
        value = value + program.channel("shift")
    if "residual" in names:
        value = value + program.full("residual")
    return program.store(program.activation(activation)(value))


@_remembered
def normalise(names: frozenset[str], activation: str, eps: float) -> Program:
    """activation(scale * (acc - mean) / sqrt(squares / rows + eps) + shift + residual)"""
    var = program.channel("squares") / program.rows()
    return Program(_normalised(program.acc(), var, names, activation, eps))


@_remembered
def normalise_and_update(
    names: frozenset[str], activation: str, eps: float, momentum: float | None, types: tuple[torch.dtype, torch.dtype]
) -> Program:
    """normalise(), and the running statistics after the batch in these data types. momentum: None if it is a tensor."""
    (output,) = normalise(names, activation, eps).outputs
    share = program.scalar("momentum") if momentum is None else momentum
    batch = program.channel("mean"), program.channel("squares") / (program.rows() - 1)
    outputs = []
    for name, value, dtype in zip(("running_mean", "running_var"), batch, types, strict=True):
        running = program.channel(name)
        outputs.append(program.store(running + share * (value - running), dtype, per="channel"))
    return Program(output, *outputs)


@_remembered
def folded(names: frozenset[str], activation: str, eps: float) -> Program:
    """normalise() of acc + bias with a given variance."""
    return Program(_normalised(_biased(names), program.channel("var"), names, activation, eps))
