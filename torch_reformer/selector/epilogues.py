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

import torch

from .. import program
from ..problem import ConvProblem
from ..program import Program
from ..runtime import native

WAYS = ("fused", "separate")  # a program runs in the convolution's kernel, or in one of its own
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


def choice(problem: ConvProblem, device: str | None, text: str) -> native.Epilogue:
    """Where the epilogue runs behind the problem's convolution on such a device."""
    return native.epilogue(problem.native(), device, program_of(text).code)[0]


def features(problem: ConvProblem, device: str, text: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows and weights ``[token, term]`` of what a selector of epilogues reads, by the native library's definition and
    the kernels' selector in force; None if no kernel that it ranks runs the epilogue."""
    return native.epilogue(problem.native(), device, program_of(text).code)[1]
