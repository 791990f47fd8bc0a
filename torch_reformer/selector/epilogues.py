"""Text form of programs after convolutions, for lists of problems and timing databases: ``bias.residual.relu``.

A text names the operations on the result, step by step; the last value is stored:

* ``bias``, ``scale``: add, or multiply by, a per-channel number;
* ``residual``, ``gate``: add, or multiply by, a tensor as large as the result;
* an activation, by its name in ``torch_reformer.program.ACTIVATIONS``;
* ``dropout``: drop elements by random numbers;
* ``store``: store the current value, too;
* ``moments``, ``sum``: reduce the current value over each channel.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from torch import Tensor

from .. import program
from ..problem import ConvProblem
from ..program import Program
from ..runtime import config, native

_DROPPED = 0.1


def _dropout(value: program.Value, name: str) -> program.Value:
    return value * program.select(program.random(name) < _DROPPED, 0, 1 / (1 - _DROPPED))


_STEPS = {
    "bias": lambda value, name: value + program.channel(name),
    "scale": lambda value, name: value * program.channel(name),
    "residual": lambda value, name: value + program.full(name),
    "gate": lambda value, name: value * program.full(name),
    "dropout": _dropout,
}
_OUTPUTS = {"store": program.store, "moments": program.moments, "sum": program.sum}


@functools.cache
def program_of(text: str) -> Program:
    """Program for a text.

    Raises:
        ValueError: for an unknown step.
    """
    value, outputs = program.acc(), []
    for number, step in enumerate(text.split(".")):
        if step in _STEPS:
            value = _STEPS[step](value, f"{step}{number}")
        elif step in _OUTPUTS:
            outputs.append(_OUTPUTS[step](value))
        elif step in program.ACTIVATIONS:
            value = program.activation(step)(value)
        else:
            known = ", ".join((*_STEPS, *_OUTPUTS, *program.ACTIVATIONS))
            raise ValueError(f"an epilogue has no step {step!r} (in {text!r}): there are {known}")
    return Program(program.store(value), *outputs)


class Ways(NamedTuple):
    """Kernels of the two ways to run a program after a convolution, as solver names, and the features by which a
    selector chooses between them: rows and weights ``[token, term]``."""

    kernels: dict[str, str]  # by the names in native.WAYS
    rows: Tensor
    weights: Tensor


def check(problem: ConvProblem) -> None:
    """Raise ``ValueError`` for a problem that no program can follow."""
    if problem.direction != "F":
        raise ValueError(f"programs run after forward convolutions, not after gradients: {problem}")
    if problem.bias:
        raise ValueError(f"a program adds the bias itself (+bias): the problem must have none: {problem}")


def choice(problem: ConvProblem, device: str | None, text: str) -> native.Epilogue:
    """Decision how to run the epilogue after the problem's convolution on a device.

    Raises:
        ValueError: for a gradient, a problem with a bias, or an unknown step.
    """
    check(problem)
    return native.epilogue(problem.native(), device, program_of(text).code)[0]


def ways(problem: ConvProblem, device: str, text: str) -> Ways | None:
    """Ways between which the selector of epilogues chooses, under the current configuration and kernel weights; None if
    none of the kernels ranked by these can run the epilogue.

    Raises:
        ValueError: as choice().
    """
    check(problem)
    decision, features = native.epilogue(problem.native(), device, program_of(text).code)
    if features is None:
        return None
    names = config.solvers()
    return Ways({"fused": names[decision.fused], "separate": names[decision.separate]}, *features)
