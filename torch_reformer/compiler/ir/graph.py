"""The compiler's graph: what one call computes, as operations on tensors whose sizes are known.

A :class:`Value` is memory that one operation makes, or that is given; a :class:`View` is a way to look at a value.
Operations take views, so what only looks at memory in another way (reshapes, permutations, slices, expansions) is no
operation. There are seven kinds:

- :class:`Map`: a result for each element of its own, of the operands' elements there (broadcast). What it computes is
  an expression of a program (torch_reformer/program).
- :class:`Random`: such a one of random numbers.
- :class:`Reduce`: a sum, a maximum or moments over some of the dimensions.
- :class:`Conv`: a two-dimensional convolution, behind whose kernel a program can run.
- :class:`ConvGrads`: the gradients of one.
- :class:`Casts`: many tensors in another data type.
- :class:`Call`: any operator of PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...program import Value as Expression
from .layout import Layout, span


class Typed(NamedTuple):
    """What is known of a tensor before it is there."""

    layout: Layout
    dtype: torch.dtype
    device: torch.device


@dataclass(eq=False)
class Value:
    """A tensor's memory, as one operation made it, or as it was given (maker: None). memory: how all of it lies, where
    rows are longer than the layout's; zeros are there (lowering/constant_pad.py)."""

    number: int
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    maker: Operation | None = None
    memory: Layout | None = None

    @property
    def bytes(self) -> int:
        return self.layout.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True, eq=False)
class View:
    value: Value
    layout: Layout

    @property
    def is_full(self) -> bool:
        """Whether it has each of the value's elements once, in whatever order of dimensions."""
        own, whole = self.layout, self.value.layout
        return own.numel == whole.numel and own.is_dense and whole.is_dense

    @property
    def elements(self) -> int:
        """How many it looks at: what is repeated counts once."""
        return self.layout.elements

    def __str__(self) -> str:
        return str(self.value) if self.layout == self.value.layout else f"{self.value}{self.layout}"


@dataclass(eq=False)
class Operation(ABC):
    """node: of PyTorch's graph, which it computes; None of what passes add."""

    results: list[Value] = field(default_factory=list, init=False)
    node: Node | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def operands(self) -> list[View]:
        """What it reads."""

    @abstractmethod
    def change_operands(self, of: Callable[[View], View]) -> None:
        """Puts another view in the place of each operand."""

    @property
    def writes(self) -> list[Value]:
        """Values that are there and that it changes."""
        return []

    @property
    def is_random(self) -> bool:
        """Whether it draws from a generator, whose order is seen."""
        return False

    @abstractmethod
    def text(self) -> str:
        """The operation without its results."""


@dataclass(eq=False)
class _OfInputs(Operation):
    inputs: list[View]
    name: str

    @property
    def operands(self) -> list[View]:
        return self.inputs

    def change_operands(self, of: Callable[[View], View]) -> None:
        self.inputs = list(map(of, self.inputs))

    def text(self) -> str:
        return f"{self.name}({', '.join(map(str, self.inputs))})"


@dataclass(eq=False)
class Map(_OfInputs):
    """result = expression(*inputs), element by element: inputs have the result's sizes. after_reduction: it only goes on
    with what others have reduced (fusion/group.py). rounds: a cast that the user wrote (joint_graph/user_casts.py)."""

    expression: Callable[..., Expression]
    after_reduction: bool = field(default=False, init=False)
    rounds: bool = field(default=False, init=False)


def is_cast(operation: Operation | None) -> bool:
    return isinstance(operation, Map) and operation.name in ("cast", "_to_copy") and len(operation.inputs) == 1


def is_removable_cast(operation: Operation | None) -> bool:
    """True for a cast whose operand may be used in its result's place: it does no more than to round, and not because
    the user asked for it. Truth values are no rounded numbers."""
    if not is_cast(operation) or operation.rounds:
        return False
    return operation.results[0].dtype.is_floating_point or operation.inputs[0].value.dtype == torch.bool


@dataclass(eq=False)
class Random(Map):
    """Random numbers: of each element's place in memory, and of the key that is the only input."""


@dataclass(eq=False)
class Reduce(Operation):
    """A sum, max or moments of the elements that differ only in these dimensions. The result has one element for each
    of the others, in their order; of moments two such, the means and the sums of squared differences. It is fp32, or
    fp64 of fp64; passes/narrow_reductions.py makes sums and maxima narrower."""

    kind: str
    input: View
    over: tuple[int, ...]

    @property
    def operands(self) -> list[View]:
        return [self.input]

    def change_operands(self, of: Callable[[View], View]) -> None:
        self.input = of(self.input)

    def text(self) -> str:
        return f"{self.kind}({self.input}, over={list(self.over)})"


@dataclass(frozen=True)
class Geometry:
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def __str__(self) -> str:
        return f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, groups={self.groups}"


@dataclass(eq=False)
class Conv(Operation):
    input: View
    weight: View
    geometry: Geometry

    @property
    def operands(self) -> list[View]:
        return [self.input, self.weight]

    def change_operands(self, of: Callable[[View], View]) -> None:
        self.input, self.weight = of(self.input), of(self.weight)

    def text(self) -> str:
        return f"conv({self.input}, {self.weight}, {self.geometry})"


@dataclass(eq=False)
class ConvGrads(Operation):
    """Those of the input and of the weight that are wanted."""

    grad: View
    input: View
    weight: View
    geometry: Geometry
    wanted: tuple[bool, bool]

    @property
    def operands(self) -> list[View]:
        return [self.grad, self.input, self.weight]

    def change_operands(self, of: Callable[[View], View]) -> None:
        self.grad, self.input, self.weight = map(of, self.operands)

    def text(self) -> str:
        names = [name for name, want in zip(("input", "weight"), self.wanted, strict=True) if want]
        return f"conv_grads({self.grad}, {self.input}, {self.weight}, {self.geometry}) of {', '.join(names)}"


@dataclass(eq=False)
class Casts(_OfInputs):
    """Each input in another data type, with the layout that it has; a result may have more along its first dimension,
    zeros. parts: the results are parts of one memory."""

    parts: bool


@dataclass(eq=False)
class Call(Operation):
    """An operator of PyTorch. Among its arguments and in lists among them tensors are views. lengths: of each list of
    tensors among its results. parts: the results are what lies along the first dimension of what it gives."""

    operator: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]
    lengths: tuple[int, ...] = ()
    written: tuple[View, ...] = ()
    parts: bool = False

    @property
    def operands(self) -> list[View]:
        return list(views_of((self.args, tuple(self.kwargs.values()))))

    def change_operands(self, of: Callable[[View], View]) -> None:
        self.args, self.kwargs = replaced(self.args, of), replaced(self.kwargs, of)
        self.written = tuple(map(of, self.written))

    @property
    def writes(self) -> list[Value]:
        return [view.value for view in self.written]

    @property
    def is_random(self) -> bool:
        return torch.Tag.nondeterministic_seeded in self.operator.tags

    def text(self) -> str:
        def told(value) -> str:
            if isinstance(value, (list, tuple)):
                return f"[{', '.join(map(told, value))}]"
            return str(value)

        words = [*map(told, self.args), *(f"{name}={told(value)}" for name, value in self.kwargs.items())]
        return f"{self.operator.name()}({', '.join(words)})"


def views_of(arguments) -> Iterator[View]:
    if isinstance(arguments, View):
        yield arguments
    elif isinstance(arguments, (list, tuple)):
        for each in arguments:
            yield from views_of(each)


def replaced(arguments, of: Callable[[View], Any]):
    """The same arguments with something in the place of each view."""
    if isinstance(arguments, View):
        return of(arguments)
    if isinstance(arguments, (list, tuple)):
        return type(arguments)([replaced(each, of) for each in arguments])
    if isinstance(arguments, dict):
        return {name: replaced(each, of) for name, each in arguments.items()}
    return arguments


class Graph:
    """Operations in an order in which each follows those it needs.

    inputs: the tensors that are given. outputs: of each result of the call the view that it is, or a constant."""

    def __init__(self):
        self.inputs: list[Value] = []
        self.operations: list[Operation] = []
        self.outputs: list[View | Any] = []
        self.copies: dict[tuple[Value, Layout], Value] = {}  # of values as views have them (lowering/contiguous.py)
        self.joins: dict[tuple, tuple[list[View], Value]] = {}  # views that are parts of a value (passes/batching.py)
        self._count = 0

    def value(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> Value:
        self._count += 1
        return Value(self._count - 1, layout, dtype, device)

    def give(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> Value:
        self.inputs.append(self.value(layout, dtype, device))
        return self.inputs[-1]

    def add(self, operation: Operation, results: Iterable[Typed]) -> list[Value]:
        """Adds an operation that makes these."""
        operation.results = [self.value(*each) for each in results]
        for result in operation.results:
            result.maker = operation
        self.operations.append(operation)
        return operation.results

    def readers(self) -> dict[Value, list[Operation | None]]:
        """For each value that is read the operations that do; None stands for a result of the graph."""
        found: dict[Value, list[Operation | None]] = {}
        for operation in self.operations:
            for view in operation.operands:
                found.setdefault(view.value, []).append(operation)
        for view in self.output_views():
            found.setdefault(view.value, []).append(None)
        return found

    def output_views(self) -> list[View]:
        return [each for each in self.outputs if isinstance(each, View)]

    def __str__(self) -> str:
        def typed(value: Value) -> str:
            return f"{value}: {str(value.dtype).removeprefix('torch.')}{value.layout}"

        lines = [f"given {typed(value)}" for value in self.inputs]
        for operation in self.operations:
            made = ", ".join(map(typed, operation.results))
            lines.append(f"{made} = {operation.text()}" if made else operation.text())
        return "\n".join([*lines, f"gives {', '.join(map(str, self.outputs))}"])


def verify(graph: Graph) -> None:
    """Raises ValueError with a sentence where the graph is none: in tests, after each pass."""
    there = {value for value in graph.inputs}

    def check(view: View, what: str) -> None:
        if view.value not in there:
            raise ValueError(f"{what} needs {view.value} before it is made")
        layout, memory = view.layout, view.value.memory or view.value.layout
        last = layout.offset + sum((n - 1) * s for n, s in zip(layout.sizes, layout.strides, strict=True))
        if layout.numel and (layout.offset < 0 or last >= span(memory)):
            raise ValueError(f"{what} reads {view} beyond the memory of {memory}")

    for operation in graph.operations:
        for view in operation.operands:
            check(view, operation.text())
        if isinstance(operation, Map):
            (result,) = operation.results
            for view in operation.operands:
                if view.layout.sizes != result.layout.sizes:
                    raise ValueError(f"{operation.text()} has operands of other sizes than {result.layout}")
        for result in operation.results:
            if result.maker is not operation:
                raise ValueError(f"{result} is made by another operation than {operation.text()}")
            there.add(result)
    for view in graph.output_views():
        check(view, "the result")
