"""What private operators take as one number: geometries, and plans, the steps that one call runs. A call from Python
takes longer than most kernels, and to hand over lists takes longer than to decide what to run.

A plan's number means something in this process only: where a graph might be recorded, the public operators are
called.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from . import native
from .arguments import shown


@functools.lru_cache(4096)
def _packed(*numbers: int) -> int | None:
    *pairs, groups = numbers
    if not all(-(2**63) <= each < 2**63 for each in numbers):
        raise OverflowError  # no operator takes it
    if not all(0 <= each < 1 << 8 for each in pairs) or not 0 <= groups < 1 << 15:
        return None
    return sum(each << 8 * place for place, each in enumerate(numbers))


def geometry_number(stride, padding, dilation, groups) -> int | None:
    """A geometry packed into the number by which private operators take it; None for one that does not fit in there,
    which the public operators take. csrc/plan/interned.h unpacks it."""
    index = operator.index  # equal values that are no whole numbers (2.0), or that may change, are no keys
    try:
        return _packed(*map(index, stride), *map(index, padding), *map(index, dilation), index(groups))
    except (TypeError, OverflowError):
        raise TypeError(
            "conv2d: stride, padding, dilation and groups must be whole numbers below 2^63, got "
            f"{stride}, {padding}, {dilation} and {shown(groups)}"
        ) from None


def geometry_of(number: int) -> tuple:
    """Stride, padding, dilation and groups."""
    numbers = [number >> 8 * place & 0xFF for place in range(6)]
    return tuple(numbers[:2]), tuple(numbers[2:4]), tuple(numbers[4:]), number >> 48


class Step(NamedTuple):
    kind: str
    what: tuple[int, ...]  # a program's code, or a number
    geometry: int  # packed, or -1
    inputs: tuple[int, ...]
    into: tuple[int, ...] = ()


_KINDS = ("conv2d", "stitch", "conv2d_grads", "parts")  # in the order of csrc/plan/plan.h


class Plan:
    """Steps, written once and run for many tensors. Tensors have numbers: those that are given, then what the steps
    make. Each method adds a step and returns the numbers of what it makes. Geometries are packed.

    Args:
        inputs: how many tensors are given.
    """

    def __init__(self, inputs: int):
        self._inputs = self._count = inputs
        self.steps: list[Step] = []
        self.outputs: tuple[int, ...] = ()

    def _add(self, step: Step, results: int) -> range:
        self.steps.append(step)
        self._count += results
        return range(self._count - results, self._count)

    def conv2d(self, code: tuple[int, ...], geometry: int, input: int, weight: int, tensors: Iterable[int]) -> range:
        """A convolution, and the program of this code on its result."""
        return self._add(Step("conv2d", code, geometry, (input, weight, *tensors)), code[2])

    def stitch(self, code: tuple[int, ...], acc: int, tensors: Iterable[int], into: Iterable[int] = ()) -> range:
        """The program of this code, whose last outputs are written to these tensors of channels."""
        return self._add(Step("stitch", code, -1, (acc, *tensors), tuple(into)), code[2])

    def conv2d_grads(self, wanted: tuple[bool, bool], geometry: int, grad: int, input: int, weight: int) -> range:
        """The gradients of input and weight, those that are wanted, from that of the result."""
        bits = wanted[0] + 2 * wanted[1]
        return self._add(Step("conv2d_grads", (bits,), geometry, (grad, input, weight)), sum(wanted))

    def parts(self, tensor: int, count: int) -> range:
        """The tensors along the first dimension of one."""
        return self._add(Step("parts", (count,), -1, (tensor,)), count)

    def give(self, *outputs: int) -> Plan:
        """Says what it gives, after its last step."""
        self.outputs = outputs
        return self

    @functools.cached_property
    def number(self) -> int:
        """By which reformer::_run takes it, as long as this object lives.

        Raises:
            ValueError: if a program's code is malformed.
        """
        code = [self._inputs, len(self.outputs), *self.outputs]
        for step in self.steps:
            length = [len(step.what)] if step.kind in ("conv2d", "stitch") else []
            code += [_KINDS.index(step.kind), *length, *step.what, step.geometry]
            code += [len(step.inputs), *step.inputs, len(step.into), *step.into]
        return native.intern_plan(code)

    def __del__(self, release=native.release_plan):  # bound here: modules may be gone when the process ends
        if "number" in self.__dict__:
            release(self.number)


_run = torch.ops.reformer._run.default


def run(plan: Plan, tensors: list[Tensor]) -> list[Tensor]:
    """What the plan gives for these tensors, on the eager fast path."""
    return _run(tensors, plan.number)
