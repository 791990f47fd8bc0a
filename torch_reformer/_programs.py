"""The programs that the fused operators run, written once for each set of tensors and settings."""

from __future__ import annotations

import functools

import torch

from . import epilogue
from .epilogue import Program
from .epilogue.values import plain


def _remembered(write):
    """Keeps the programs that a function writes. torch.compile, which warns of caches, writes them for every graph."""
    kept = functools.lru_cache(1024)(write)

    @functools.wraps(write)
    def program(*arguments) -> Program:
        if torch.compiler.is_compiling():
            return write(*[plain(each) if isinstance(each, (int, float)) else each for each in arguments])
        return kept(*arguments)

    return program


def _biased(names: frozenset[str]) -> epilogue.Value:
    return epilogue.acc() + epilogue.channel("bias") if "bias" in names else epilogue.acc()


@_remembered
def act(names: frozenset[str], activation: str) -> Program:
    """activation(acc + bias + residual)"""
    value = _biased(names)
    if "residual" in names:
        value = value + epilogue.full("residual")
    return Program(epilogue.store(epilogue.activation(activation)(value)))


@_remembered
def sums() -> Program:
    """sum(acc), over each channel"""
    return Program(epilogue.sum(epilogue.acc()))


@_remembered
def linear(
    names: frozenset[str], activation: str, rate: float, types: tuple[torch.dtype | None, ...] = (None,)
) -> Program:
    """dropout(activation(acc + bias)) * scale * keep + residual, in each of these data types; None is the result's.
    keep: of the rows."""
    value = epilogue.activation(activation)(_biased(names))
    if rate == 1:
        value = value * 0
    elif rate:
        value = value * epilogue.select(epilogue.random("key") < rate, 0, 1 / (1 - rate))  # NaN stays NaN
    if "scale" in names:
        value = value * epilogue.channel("scale")
    if "keep" in names:
        value = value * epilogue.row("keep")
    if "residual" in names:
        value = value + epilogue.full("residual")
    return Program(*(epilogue.store(value, dtype) for dtype in types))


@_remembered
def cast(dtype: torch.dtype) -> Program:
    """acc in another data type"""
    return Program(epilogue.store(epilogue.acc(), dtype))


@_remembered
def moments(names: frozenset[str]) -> Program:
    """acc + bias, and its channels' mean and sum of squared differences"""
    value = _biased(names)
    return Program(epilogue.store(value), epilogue.moments(value, per="channel"))


def _normalised(value, var, names: frozenset[str], activation: str, eps: float) -> epilogue.Output:
    scale = epilogue.rsqrt(var + eps)
    if "scale" in names:
        scale = scale * epilogue.channel("scale")
    value = (value - epilogue.channel("mean")) * scale
    if "shift" in names:
        value = value + epilogue.channel("shift")
    if "residual" in names:
        value = value + epilogue.full("residual")
    return epilogue.store(epilogue.activation(activation)(value))


@_remembered
def normalise(names: frozenset[str], activation: str, eps: float) -> Program:
    """activation(scale * (acc - mean) / sqrt(squares / rows + eps) + shift + residual)"""
    var = epilogue.channel("squares") / epilogue.rows()
    return Program(_normalised(epilogue.acc(), var, names, activation, eps))


@_remembered
def normalise_and_update(
    names: frozenset[str], activation: str, eps: float, momentum: float | None, types: tuple[torch.dtype, torch.dtype]
) -> Program:
    """The same, and the running statistics after the batch, of these data types. momentum: None if it is a tensor."""
    (output,) = normalise(names, activation, eps).outputs
    share = epilogue.scalar("momentum") if momentum is None else momentum
    batch = epilogue.channel("mean"), epilogue.channel("squares") / (epilogue.rows() - 1)
    outputs = []
    for name, value, dtype in zip(("running_mean", "running_var"), batch, types, strict=True):
        running = epilogue.channel(name)
        outputs.append(epilogue.store(running + share * (value - running), dtype, per="channel"))
    return Program(output, *outputs)


@_remembered
def folded(names: frozenset[str], activation: str, eps: float) -> Program:
    """The same of acc + bias, with a given variance."""
    return Program(_normalised(_biased(names), epilogue.channel("var"), names, activation, eps))
