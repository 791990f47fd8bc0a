"""What private operators take as one number: geometries, and plans, the steps that one call runs. A call from Python
takes longer than most kernels, and to hand over lists takes longer than to decide what to run.

A plan's number means something in this process only: where a graph might be recorded, the public operators are
called.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import native
from .arguments import shown
from .aten_call import AtenCall


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
    what: tuple[int, ...]  # as csrc/plan/plan.h has it for this kind
    inputs: tuple[int, ...]
    made: range
    into: tuple[int, ...] = ()
    call: AtenCall | None = None

    def writes(self) -> tuple[int, ...]:
        return self.call.writes if self.call else self.into

    def view(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Sizes, strides and offset of a view."""
        offset, dimensions, *numbers = self.what
        return tuple(numbers[:dimensions]), tuple(numbers[dimensions:]), offset

    def __str__(self) -> str:
        if self.call:
            return str(self.call)
        told = [_names(self.inputs)]
        if self.kind in ("conv2d", "conv2d_grads"):
            names = ("stride", "padding", "dilation", "groups")
            told += [f"{name}={each}" for name, each in zip(names, geometry_of(self.what[0]), strict=True)]
        elif self.kind == "view":
            sizes, strides, offset = self.view()
            told += [f"sizes={sizes}", f"strides={strides}", f"offset={offset}"]
        return f"{self.kind}({', '.join(told)})"


_KINDS = ("conv2d", "stitch", "conv2d_grads", "parts", "view", "aten")  # in the order of csrc/plan/plan.h
_MOST = 1 << 12  # tensors of one step, far more than any makes


def _names(tensors: Iterable[int]) -> str:
    return ", ".join(f"%{tensor}" for tensor in tensors)


class Plan:
    """Steps, written once and run for many tensors. Tensors have numbers: those that are given, then what the steps
    make. Each method adds a step and returns the numbers of what it makes. Geometries are packed.

    A tensor is freed after the step that needs it last; the references to those that are given are, too. str() shows
    the steps, a line each.

    Args:
        inputs: how many tensors are given.
    """

    def __init__(self, inputs: int):
        self._inputs = self._count = inputs
        self.steps: list[Step] = []
        self.outputs: tuple[int, ...] = ()
        self.frees: list[list[int]] = []  # of each step, from give() on

    def _add(
        self,
        kind: str,
        what: Iterable[int],
        inputs: Iterable[int],
        results: int,
        into: Iterable[int] = (),
        call: AtenCall | None = None,
    ) -> range:
        if not 0 <= results <= _MOST:
            raise ValueError(f"a step makes at most {_MOST} tensors, got {results}")
        made = range(self._count, self._count + results)
        self.steps.append(Step(kind, tuple(what), tuple(inputs), made, tuple(into), call))
        self._count += results
        return made

    def conv2d(self, code: tuple[int, ...], geometry: int, input: int, weight: int, tensors: Iterable[int]) -> range:
        """A convolution, and the program of this code on its result."""
        return self._add("conv2d", (geometry, *code), (input, weight, *tensors), code[2])

    def stitch(self, code: tuple[int, ...], acc: int, tensors: Iterable[int], into: Iterable[int] = ()) -> range:
        """The program of this code, whose last outputs are written to these tensors of channels."""
        return self._add("stitch", code, (acc, *tensors), code[2], into)

    def conv2d_grads(self, wanted: tuple[bool, bool], geometry: int, grad: int, input: int, weight: int) -> range:
        """The gradients of input and weight, those that are wanted, from that of the result."""
        bits = wanted[0] + 2 * wanted[1]
        return self._add("conv2d_grads", (geometry, bits), (grad, input, weight), sum(wanted))

    def parts(self, tensor: int, count: int) -> range:
        """The tensors along the first dimension of one."""
        return self._add("parts", (count,), (tensor,), count)

    def view(self, tensor: int, sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> range:
        """The same memory with other sizes and strides, from so many elements after the tensor's first on.

        Raises:
            ValueError: if there are not as many strides as sizes.
        """
        if len(sizes) != len(strides):
            raise ValueError(f"a view has as many strides as sizes, got {len(strides)} and {len(sizes)}")
        return self._add("view", (offset, len(sizes), *sizes, *strides), (tensor,), 1)

    def aten(
        self,
        operator: Callable[..., Any],
        args: Sequence = (),
        kwargs: Mapping[str, Any] | None = None,
        lengths: Iterable[int] = (),
        layouts: Iterable[tuple[Sequence[int], Sequence[int]]] = (),
    ) -> range:
        """Any operator of PyTorch's dispatcher, such as torch.ops.aten.add.out: called as from Python, but tensors are
        numbers. lengths: of each list of tensors that it gives, whose elements count as results. layouts: sizes and
        strides that its results get, if they have others.

        Raises:
            TypeError: an argument is missing, too many, or of another type than the schema says.
            ValueError: it gives something else than tensors.
            RuntimeError: there is no library for the torch at hand.
        """
        call = AtenCall(operator, args, kwargs or {}, lengths, layouts)
        return self._add("aten", call.code(), call.inputs, call.result_count, call=call)

    def give(self, *outputs: int) -> Plan:
        """Says what it gives, after its last step."""
        self.outputs = outputs
        self.frees = self._last_uses()
        return self

    def _last_uses(self) -> list[list[int]]:
        """What each step is the last to need or, if nobody needs it, makes; but what the plan gives."""
        last = dict.fromkeys(range(self._inputs), 0)
        for place, step in enumerate(self.steps):
            last.update(dict.fromkeys((*step.inputs, *step.into, *step.made), place))
        frees: list[list[int]] = [[] for _ in self.steps]
        for tensor, place in last.items():
            if self.steps and tensor not in self.outputs:
                frees[place].append(tensor)
        return frees

    @functools.cached_property
    def number(self) -> int:
        """By which reformer::_run takes it, as long as this object lives.

        Raises:
            ValueError: if a step is malformed.
        """
        code = [self._inputs, len(self.outputs), *self.outputs]
        for step, frees in zip(self.steps, self._last_uses(), strict=True):
            code += [_KINDS.index(step.kind)]
            for numbers in (step.what, step.inputs, step.into, frees):
                code += [len(numbers), *numbers]
        return native.intern_plan(code)

    def __str__(self) -> str:
        lines = [f"given {_names(range(self._inputs))}"]
        for step, frees in zip(self.steps, self._last_uses(), strict=True):
            notes = [("writes", step.writes()), ("frees", frees)]
            told = "; ".join(f"{verb} {_names(tensors)}" for verb, tensors in notes if tensors)
            made = f"{_names(step.made)} = " if step.made else ""
            lines.append(f"{made}{step}{told and f'  # {told}'}")
        return "\n".join([*lines, f"gives {_names(self.outputs)}"])

    def __reduce__(self):  # another process has other numbers
        return _planned, (self._inputs, self.steps, self.outputs)

    def __del__(self, release=native.release_plan):  # bound here: modules may be gone when the process ends
        if "number" in self.__dict__:
            release(self.number)


def _planned(
    inputs: int,
    steps: list[Step],
    outputs: tuple[int, ...],
    between: Callable[[], None] = lambda: None,
    places: Container[int] = (),
) -> Plan:
    plan = Plan(inputs)
    for place, step in enumerate(steps):
        if place in places:
            plan.aten(between)
        what = step.call.code() if step.call else step.what
        plan._add(step.kind, what, step.inputs, len(step.made), step.into, step.call)
    if len(steps) in places:
        plan.aten(between)
    return plan.give(*outputs)


def between_steps(plan: Plan, operator: Callable[[], None], places: Container[int]) -> Plan:
    """The same, with an operator that neither takes nor gives anything called before the steps at these places. That
    behind the last step is one, too."""
    return _planned(plan._inputs, plan.steps, plan.outputs, operator, places)


def alone(step: Step) -> Plan:
    """A plan of one step of another: it takes the step's inputs and what it writes to, and gives nothing."""
    found, count = Plan(len(step.inputs) + len(step.into)), len(step.inputs)
    places = range(count), range(count, count + len(step.into))
    found._add(step.kind, step.what, places[0], len(step.made), places[1], step.call)
    return found.give()


_ops = torch.ops.reformer
_run, _hold, _run_held = _ops._run.default, _ops._hold.default, _ops._run_held.default


def run(plan: Plan, tensors: list[Tensor]) -> list[Tensor]:
    """What the plan gives for these tensors, on the eager fast path."""
    return _run(tensors, plan.number)


def run_and_free(plan: Plan, tensors: list[Tensor]) -> list[Tensor]:
    """The same, but the list is emptied first: so the plan frees each tensor after its last use, if nobody else refers
    to it. One call more."""
    held = _hold(tensors)
    tensors.clear()
    return _run_held(held, plan.number)
