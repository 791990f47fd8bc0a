"""Text form of programs after convolutions and matrix products, for lists of problems and timing databases:
``bias.residual.relu``.

A text names the operations on the result, step by step; the last value is stored:

* ``bias``, ``scale``: add, or multiply by, a per-channel number;
* ``residual``, ``gate``: add, or multiply by, a tensor as large as the result;
* an activation, by its name in ``torch_reformer.program.ACTIVATIONS``;
* ``gelu_grad``, ``silu_grad``, ``relu_grad``: multiply by the activation's derivative at a tensor as large as the
  result;
* ``dropout``: drop elements by random numbers;
* ``store``: store the current value, too;
* ``moments``, ``sum``: reduce the current value over each channel.

A program that these steps do not make, such as one of a compiler's plan, is ``code_`` and its code in base 64.
"""

from __future__ import annotations

import base64
import functools
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from .. import program
from ..problem import ConvProblem
from ..program import Program
from ..program.program import decode
from ..runtime import config, native

_DROPPED = 0.1


def _dropout(value: program.Value, name: str) -> program.Value:
    return value * program.select(program.random(name) < _DROPPED, 0, 1 / (1 - _DROPPED))


def _gelu_grad(value: program.Value, name: str) -> program.Value:
    at = program.full(name)
    return value * (program.normal_cdf(at) + at * program.normal_pdf(at))


def _silu_grad(value: program.Value, name: str) -> program.Value:
    at = program.full(name)
    share = program.sigmoid(at)
    return value * (share + at * share * (1 - share))


_STEPS = {
    "bias": lambda value, name: value + program.channel(name),
    "scale": lambda value, name: value * program.channel(name),
    "residual": lambda value, name: value + program.full(name),
    "gate": lambda value, name: value * program.full(name),
    "dropout": _dropout,
    "gelu_grad": _gelu_grad,
    "silu_grad": _silu_grad,
    "relu_grad": lambda value, name: program.select(program.full(name) > 0, value, 0),
}
_CODE = "code_"
_OUTPUTS = {"store": program.store, "moments": program.moments, "sum": program.sum}


@functools.cache
def program_of(text: str) -> Program:
    """Program for a text.

    Raises:
        ValueError: for an unknown step.
    """
    if text.startswith(_CODE):
        return _decoded(text)
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


def text_of(code: tuple[int, ...], usual: Iterable[str] = ()) -> str:
    """Text for a program's code: the one of these texts that stands for the same program, if there is one."""
    for text in usual:
        if program_of(text).code == code:
            return text
    packed = zlib.compress(struct.pack(f"<{len(code)}q", *code), 9)
    return _CODE + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def _decoded(text: str) -> Program:
    try:
        packed = text.removeprefix(_CODE)
        code = zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
        return decode(struct.unpack(f"<{len(code) // 8}q", code))
    except (ValueError, zlib.error, struct.error) as error:
        raise ValueError(f"{text!r} is not the code of an epilogue") from error


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
