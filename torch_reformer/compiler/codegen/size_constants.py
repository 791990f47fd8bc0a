"""Constants of programs that are computed of sizes, such as the factor of a mean, as operands of kernels.

On GPUs a constant is part of a kernel's text, so each size would have kernels of its own. If sizes are symbols, a step
of the plan fills a tensor of one element, which programs read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from ... import program as p
from ...program import Value
from ...program.program import Output
from ...program.values import in_order
from ...runtime.sizes import Real

DEVICES = ("cuda",)  # whose kernels have constants in their text


def as_operands(outputs: Iterable[Output], name_of: Callable[[Real], str | None]) -> list[Output]:
    """The outputs with operands in place of constants that are computed of sizes; name_of: gives an operand's
    name, or None for a constant that stays."""
    outputs, new = list(outputs), {}
    for value in in_order([output.value for output in outputs]):
        operands = [new[id(operand)] for operand in value.operands]
        name = name_of(value.attribute) if type(value.attribute) is Real else None
        if name is not None:
            new[id(value)] = p.scalar(name)
        elif all(one is other for one, other in zip(operands, value.operands, strict=True)):
            new[id(value)] = value
        else:
            new[id(value)] = Value(value.op, *operands, attribute=value.attribute)
    return [dataclasses.replace(output, value=new[id(output.value)]) for output in outputs]
