"""Plans and geometries, which private operators take as single numbers. A plan is a list of steps that one call runs: a
call from Python takes longer than most kernels, and passing lists takes longer than deciding what to run.

A plan's number is valid in this process only. Where a graph might be recorded, the public operators are called instead.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import c_api, native
from .arguments import shown
from .aten_call import AtenCall


@functools.lru_cache(4096)
def _packed(*numbers: int) -> int | None:
    *pairs, groups = numbers
    if not all(-(2**63) <= number < 2**63 for number in numbers):
        raise OverflowError  # no operator accepts it
    if not all(0 <= number < 1 << 8 for number in pairs) or not 0 <= groups < 1 << 15:
        return None
    return sum(number << 8 * place for place, number in enumerate(numbers))


def geometry_number(stride, padding, dilation, groups) -> int | None:
    """Pack a geometry into the number by which private operators take it, or return None if it does not fit; the public
    operators take any geometry. csrc/plan/interned.h unpacks the number."""
    index = operator.index  # values such as 2.0, or mutable ones, must not become keys of the cache
    try:
        return _packed(*map(index, stride), *map(index, padding), *map(index, dilation), index(groups))
    except (TypeError, OverflowError):
        raise TypeError(
            "conv2d: stride, padding, dilation and groups must be whole numbers below 2^63, got "
            f"{stride}, {padding}, {dilation} and {shown(groups)}"
        ) from None


def geometry_of(number: int) -> tuple:
    """Unpack stride, padding, dilation and groups."""
    numbers = [number >> 8 * place & 0xFF for place in range(6)]
    return tuple(numbers[:2]), tuple(numbers[2:4]), tuple(numbers[4:]), number >> 48


class Step(NamedTuple):
    kind: str
    what: tuple[int, ...]  # arguments of this kind of step, as described in csrc/plan/plan.h
    inputs: tuple[int, ...]
    made: range
    into: tuple[int, ...] = ()
    call: AtenCall | None = None
    title: str = ""  # of its range in PyTorch's profiler; the library has one for steps without

    def writes(self) -> tuple[int, ...]:
        return self.call.writes if self.call else self.into

    def view(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Sizes, strides and offset of a view."""
        offset, dimensions, *numbers = self.what
        return tuple(numbers[:dimensions]), tuple(numbers[dimensions:]), offset

    def __str__(self) -> str:
        if self.call:
            return str(self.call)
        texts = [_names(self.inputs)]
        if self.kind in ("conv2d", "conv2d_grads"):
            names = ("stride", "padding", "dilation", "groups")
            texts += [f"{name}={value}" for name, value in zip(names, geometry_of(self.what[0]), strict=True)]
        elif self.kind == "view":
            sizes, strides, offset = self.view()
            texts += [f"sizes={sizes}", f"strides={strides}", f"offset={offset}"]
        return f"{self.kind}({', '.join(texts)})"


_KINDS = ("conv2d", "stitch", "conv2d_grads", "parts", "view", "aten")  # in the order of csrc/plan/plan.h
_KERNELS = ("conv2d", "stitch", "conv2d_grads")  # PyTorch names its own operators
_MOST = 1 << 12  # tensors per step, far more than any step makes


def _names(tensors: Iterable[int]) -> str:
    return ", ".join(f"%{tensor}" for tensor in tensors)


class Plan:
    """List of steps, written once and run for many sets of tensors. Tensors have numbers: first the inputs, then the
    results of the steps. Each method adds a step and returns the numbers of its results. Geometries are packed.

    A tensor is freed after the last step that needs it; so is the plan's reference to an input. str() shows the steps,
    one per line.

    Args:
        inputs: the number of input tensors.
    """

    def __init__(self, inputs: int):
        self._inputs = self._count = inputs
        self._steps: list[Step] | Callable[[], list[Step]] = []
        self.outputs: tuple[int, ...] = ()
        self.frees: list[list[int]] = []  # of each step; set by give()

    @property
    def steps(self) -> list[Step]:
        if not isinstance(self._steps, list):
            self._steps = self._steps()
        return self._steps

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
        numbers = range(self._count, self._count + results)
        self.steps.append(Step(kind, tuple(what), tuple(inputs), numbers, tuple(into), call))
        self._count += results
        return numbers

    def conv2d(self, code: tuple[int, ...], geometry: int, input: int, weight: int, tensors: Iterable[int]) -> range:
        """Add a convolution, followed by the program with this code."""
        return self._add("conv2d", (geometry, *code), (input, weight, *tensors), code[2])

    def stitch(self, code: tuple[int, ...], acc: int, tensors: Iterable[int], into: Iterable[int] = ()) -> range:
        """Add a program by its code; its last outputs, which are per channel, are written into the tensors `into`."""
        return self._add("stitch", code, (acc, *tensors), code[2], into)

    def conv2d_grads(self, wanted: tuple[bool, bool], geometry: int, grad: int, input: int, weight: int) -> range:
        """Add the gradients of the convolution's input and weight (those that are wanted), given the gradient of its
        result."""
        bits = wanted[0] + 2 * wanted[1]
        return self._add("conv2d_grads", (geometry, bits), (grad, input, weight), sum(wanted))

    def parts(self, tensor: int, count: int) -> range:
        """Split a tensor along its first dimension."""
        return self._add("parts", (count,), (tensor,), count)

    def view(self, tensor: int, sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> range:
        """Add a view of a tensor's memory with other sizes and strides, starting `offset` elements after the tensor's
        first.

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
        """Add a call of any operator of PyTorch's dispatcher, such as torch.ops.aten.add.out.

        Args:
            args, kwargs: the arguments as in a call from Python, with numbers in place of tensors.
            lengths: the length of each list of tensors among the results; the lists' elements count as results.
            layouts: (sizes, strides) of results; a result with other strides is copied.

        Raises:
            TypeError: if an argument is missing, superfluous or of another type than the schema says.
            ValueError: if a result is not a tensor.
            RuntimeError: if there is no library for the installed version of torch.
        """
        call = AtenCall(operator, args, kwargs or {}, lengths, layouts)
        return self._add("aten", call.code(), call.inputs, call.result_count, call=call)

    def name(self, first: int, title: str) -> None:
        """Name the kernels among the steps from the first one on, for PyTorch's profiler."""
        for place, step in enumerate(self.steps[first:], first):
            if step.kind in _KERNELS:
                self.steps[place] = step._replace(title=title)

    def give(self, *outputs: int) -> Plan:
        """Set the plan's outputs, after its last step."""
        self.outputs = outputs
        self.frees = self._last_uses()
        return self

    def again(self, what: Mapping[int, Sequence[int]], steps: Callable[[], list[Step]]) -> Plan:
        """The plan with other numbers, as many, in the steps at some places.

        Args:
            steps: gives its steps when they are asked for. As long as the plan does not have them, it keeps this
                function, which is to keep the calls that the numbers name.
        """
        other = Plan(self._inputs)
        other._steps, other._count, other.outputs, other.frees = steps, self._count, self.outputs, self.frees
        code, places = self._code
        code = code.copy()
        for place, numbers in what.items():
            code[places[place] : places[place] + len(numbers)] = numbers
        other._code = code, places
        return other

    def _last_uses(self) -> list[list[int]]:
        """For each step, the tensors that can be freed after it: those that it is the last to use, and its results that
        nobody uses. The plan's outputs are never freed."""
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
        """Number by which reformer::_run takes this plan, as long as this object lives.

        Raises:
            ValueError: if a step is malformed.
        """
        return native.intern_plan(self._code[0])

    @functools.cached_property
    def _code(self) -> tuple[list[int], list[int]]:
        """The plan in the code of csrc/plan/plan.h, and the place of each step's `what` in it."""
        code, places = [self._inputs, len(self.outputs), *self.outputs], []
        for step, frees in zip(self.steps, self.frees or self._last_uses(), strict=True):
            code += [_KINDS.index(step.kind)]
            places.append(len(code) + 1)
            for numbers in (step.what, step.inputs, step.into, frees, step.title.encode()):
                code += [len(numbers), *numbers]
        return code, places

    def __str__(self) -> str:
        lines = [f"given {_names(range(self._inputs))}"]
        for step, frees in zip(self.steps, self.frees or self._last_uses(), strict=True):
            notes = [("writes", step.writes()), ("frees", frees)]
            notes_text = "; ".join(f"{verb} {_names(tensors)}" for verb, tensors in notes if tensors)
            results = f"{_names(step.made)} = " if step.made else ""
            lines.append(f"{results}{step}{notes_text and f'  # {notes_text}'}")
        return "\n".join([*lines, f"gives {_names(self.outputs)}"])

    def __reduce__(self):  # numbers differ between processes
        return _planned, (self._inputs, self.steps, self.outputs)

    def __del__(self, release=c_api.release_plan):  # bound here: modules may be gone when the process ends
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
        plan.name(len(plan.steps) - 1, step.title)
    if len(steps) in places:
        plan.aten(between)
    return plan.give(*outputs)


def between_steps(plan: Plan, operator: Callable[[], None], places: Container[int]) -> Plan:
    """Copy of a plan in which an operator without arguments and results is called before the steps at these places. The
    place after the last step is allowed."""
    return _planned(plan._inputs, plan.steps, plan.outputs, operator, places)


def alone(step: Step, gives_results: bool = False) -> Plan:
    """Plan of a single step of another plan: its inputs are the step's inputs and the tensors that the step writes to.
    gives_results: its outputs are the step's results, instead of none."""
    plan, count = Plan(len(step.inputs) + len(step.into)), len(step.inputs)
    places = range(count), range(count, count + len(step.into))
    results = plan._add(step.kind, step.what, places[0], len(step.made), places[1], step.call)
    return plan.give(*results) if gives_results else plan.give()


_ops = torch.ops.reformer
_run, _hold, _run_held = _ops._run.default, _ops._hold.default, _ops._run_held.default


def run(plan: Plan, tensors: list[Tensor]) -> list[Tensor]:
    """Outputs of the plan for these tensors, by the eager fast path."""
    return _run(tensors, plan.number)


def run_and_free(plan: Plan, tensors: list[Tensor]) -> list[Tensor]:
    """Outputs of the plan, like run(), but the list is emptied first, so that the plan frees each tensor after its last
    use if nobody else refers to it. Costs one more call."""
    held = _hold(tensors)
    tensors.clear()
    return _run_held(held, plan.number)
