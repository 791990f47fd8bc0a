"""What the library keeps, and operators take by number: geometries, and sequences of operators that run in one call. A
call from Python takes longer than most kernels, and to hand over lists takes longer than to decide what to run.

A number means something in this process only: where a graph might be recorded, the public operators are called.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from . import _native

_geometries: dict[int, tuple] = {}


@functools.lru_cache(4096)
def _kept_geometry(*numbers: int) -> int:
    number = _native.keep_geometry(*numbers)
    _geometries[number] = numbers[:2], numbers[2:4], numbers[4:6], numbers[6]
    return number


def geometry_number(stride, padding, dilation, groups) -> int:
    """The number by which private operators take a geometry."""
    index = operator.index  # equal values that are no whole numbers (2.0), or that may change, are no keys
    return _kept_geometry(*map(index, stride), *map(index, padding), *map(index, dilation), index(groups))


def geometry_of(number: int) -> tuple:
    """Stride, padding, dilation and groups."""
    return _geometries[number]


class Step(NamedTuple):
    kind: str
    what: tuple[int, ...]  # a program's code, or a number
    geometry: int  # its number, or -1
    inputs: tuple[int, ...]
    into: tuple[int, ...] = ()


_KINDS = ("conv2d", "stitch", "conv2d_grads", "parts")  # in the order of csrc/sequence.h


class Sequence:
    """Steps, written once and run for many tensors. Tensors have numbers: those that are given, then what the steps
    make. Each method adds a step and returns the numbers of what it makes. Geometries are numbers, too.

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

    def give(self, *outputs: int) -> Sequence:
        """Says what it gives, after its last step."""
        self.outputs = outputs
        return self

    @functools.cached_property
    def number(self) -> int:
        """By which reformer::_run takes it.

        Raises:
            ValueError: if a program's code is malformed.
        """
        code = [self._inputs, len(self.outputs), *self.outputs]
        for step in self.steps:
            what = _native.keep_program(step.what) if step.kind in ("conv2d", "stitch") else step.what[0]
            code += [_KINDS.index(step.kind), what, step.geometry]
            code += [len(step.inputs), *step.inputs, len(step.into), *step.into]
        return _native.keep_sequence(code)


_run = torch.ops.reformer._run.default


def run(sequence: Sequence, tensors: list[Tensor]) -> list[Tensor]:
    """What the sequence gives for these tensors, where nobody watches the operators."""
    return _run(tensors, sequence.number)
