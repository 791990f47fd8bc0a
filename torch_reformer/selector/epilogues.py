"""Programs behind convolutions as texts, for lists of problems and timing databases: ``bias.residual.relu``.

A text names what happens to the result, step by step, and the last value is stored:

* ``bias``, ``scale``: a channel's number is added, or multiplied;
* ``residual``, ``gate``: the same with a tensor as large as the result;
* an activation, by its name in ``torch_reformer.program.ACTIVATIONS``;
* ``dropout``: elements are dropped by random numbers;
* ``store``: the value so far is stored, too;
* ``moments``, ``sum``: of the value so far, over each channel.
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
    """The program that a text names.

    Raises:
        ValueError: for a step that there is not.
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
    """The kernels of the two ways to run a program behind a convolution, by their solvers' names, and what a selector
    reads to choose one: rows and weights ``[token, term]``."""

    kernels: dict[str, str]  # for each of native.WAYS
    rows: Tensor
    weights: Tensor


def check(problem: ConvProblem) -> None:
    """Raises ``ValueError`` for a problem that no program stands behind."""
    if problem.direction != "F":
        raise ValueError(f"programs run behind forward convolutions, not behind gradients: {problem}")
    if problem.bias:
        raise ValueError(f"a program adds the bias itself (+bias): the problem must have none: {problem}")


def choice(problem: ConvProblem, device: str | None, text: str) -> native.Epilogue:
    """Where the epilogue runs behind the problem's convolution on such a device.

    Raises:
        ValueError: for a gradient or a problem with a bias, and for a step that there is not.
    """
    check(problem)
    return native.epilogue(problem.native(), device, program_of(text).code)[0]


def ways(problem: ConvProblem, device: str, text: str) -> Ways | None:
    """The ways between which the selector of epilogues chooses, under the configuration and the kernels' weights in
    force; None if no kernel that these rank runs the epilogue.

    Raises:
        ValueError: as choice().
    """
    check(problem)
    found, features = native.epilogue(problem.native(), device, program_of(text).code)
    if features is None:
        return None
    names = config.solvers()
    return Ways({"fused": names[found.fused], "separate": names[found.separate]}, *features)
