"""The compiler's graph: the operations of one call, on tensors of known sizes.

A :class:`Value` is the memory of a tensor that one operation computes, or of an input; a :class:`View` is a layout of
a value's elements. Operations read views, so reshapes, permutations, slices and expansions are not operations. There
are nine kinds of operation:

- :class:`Map`: element-wise, by an expression of a program (torch_reformer/program); operands are broadcast.
- :class:`Random`: a Map that computes random numbers.
- :class:`Indexed`: a Map that reads its input through maps of its axes: pads, rolls, pools, upsampling.
- :class:`Reduce`: a sum, a maximum, a product or moments over some of the dimensions.
- ``Scan`` (ir/scan.py): running sums or products along rows.
- :class:`Conv`: a two-dimensional convolution, or a matrix product (ir/product.py), whose kernel can have a program as
  its epilogue.
- :class:`ConvGrads`: the gradients of a convolution.
- :class:`Casts`: casts of many tensors to other data types.
- :class:`Call`: any other operator of PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...program import Value as Expression
from .axis_map import AxisMap
from .custom_ops import PART
from .effects import is_ordered
from .layout import Layout


class Typed(NamedTuple):
    """Layout, data type and device of a tensor that is not computed yet."""

    layout: Layout
    dtype: torch.dtype
    device: torch.device


@dataclass(eq=False)
class Value:
    """The memory of a tensor.

    Args:
        maker: the operation that computes it; None for an input of the graph.
        memory: the layout of all the memory if its rows are longer than the layout's: zeros are behind each row
            (lowering/constant_pad.py).
    """

    number: int
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    maker: Operation | None = field(default=None, repr=False)  # or an error's text would have the graph before it
    memory: Layout | None = None

    @property
    def bytes(self) -> int:
        return self.layout.numel * self.dtype.itemsize

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True, eq=False)
class View:
    """Elements of a value, in a layout of their own."""

    value: Value
    layout: Layout

    @property
    def is_full(self) -> bool:
        """True if the view has each of the value's elements once, in any order of dimensions."""
        layout, whole = self.layout, self.value.layout
        return layout.numel == whole.numel and layout.is_dense and whole.is_dense

    @property
    def elements(self) -> int:
        """Number of elements of the value that are read; repeated ones count once, also where runs overlap."""
        return min(self.layout.elements, self.value.layout.elements)

    def transposed(self) -> View:
        """The view with its dimensions in reverse order."""
        layout = self.layout
        return View(self.value, Layout(layout.sizes[::-1], layout.strides[::-1], layout.offset))

    def __str__(self) -> str:
        return str(self.value) if self.layout == self.value.layout else f"{self.value}{self.layout}"


@dataclass(eq=False)
class Operation(ABC):
    """Base class of operations. node: the node of PyTorch's graph that it computes; None if a pass added it."""

    results: list[Value] = field(default_factory=list, init=False)
    node: Node | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def operands(self) -> list[View]:
        """Views that the operation reads."""

    @abstractmethod
    def change_operands(self, new_view: Callable[[View], View]) -> None:
        """Replace each operand by `new_view(operand)`."""

    @property
    def writes(self) -> list[Value]:
        """Existing values that the operation changes in place."""
        return []

    @property
    def part(self) -> str | None:
        """The part of a training step that it belongs to, one of PARTS; None if that is not known."""
        return self.node.meta.get(PART) if self.node else None

    @property
    def is_ordered(self) -> bool:
        """True if all that are must run, in their order (ir/effects.py)."""
        return False

    @abstractmethod
    def text(self) -> str:
        """The operation and its operands as text, without its results."""


@dataclass(eq=False)
class _OfInputs(Operation):
    """An operation whose operands are one list of inputs."""

    inputs: list[View]
    name: str

    @property
    def operands(self) -> list[View]:
        return self.inputs

    def change_operands(self, new_view: Callable[[View], View]) -> None:
        self.inputs = list(map(new_view, self.inputs))

    def text(self) -> str:
        return f"{self.name}({', '.join(map(str, self.inputs))})"


@dataclass(eq=False)
class Map(_OfInputs):
    """result = expression(*inputs), element by element. Inputs have the result's sizes.

    Args:
        after_reduction: the operation continues with what others have reduced, or its result is only repeated
            (fusion/inlining.py).
        rounds: the operation is a cast that the user wrote (joint_graph/user_casts.py).
    """

    expression: Callable[..., Expression]
    after_reduction: bool = field(default=False, init=False)
    rounds: bool = field(default=False, init=False)


@dataclass(eq=False)
class Indexed(Map):
    """The only input, read through a map of each of its dimensions; only a dimension with a map changes its size.

    Args:
        maps: None stands for the identity.
        fill: an element from nowhere; 0 if elements are summed.
    """

    maps: tuple[AxisMap | None, ...]
    fill: float = 0.0

    @property
    def only_chooses(self) -> bool:
        """True if each element is one of the input's, or comes from nowhere."""
        return all(axis_map is None or axis_map.only_chooses for axis_map in self.maps)


def is_cast(operation: Operation | None) -> bool:
    """True if the operation only changes the data type of its operand."""
    return isinstance(operation, Map) and operation.name in ("cast", "_to_copy") and len(operation.inputs) == 1


def is_copy(operation: Operation | None) -> bool:
    """True for a Map that copies its operand, perhaps to another order of memory."""
    return isinstance(operation, Map) and operation.name == "clone" and not isinstance(operation, Indexed)


def is_removable_cast(operation: Operation | None) -> bool:
    """True for a cast whose operand can replace its result: it only rounds, and the user did not write it. A cast to
    bool does not round."""
    if not is_cast(operation) or operation.rounds:
        return False
    return operation.results[0].dtype.is_floating_point or operation.inputs[0].value.dtype == torch.bool


@dataclass(eq=False)
class Random(Map):
    """Random numbers, computed from the key, which is the only input, and from each element's place in memory."""


@dataclass(eq=False)
class OverDims(Operation):
    """An operation over the dimensions `over` of its input."""

    kind: str
    input: View
    over: tuple[int, ...]

    @property
    def operands(self) -> list[View]:
        return [self.input]

    def change_operands(self, new_view: Callable[[View], View]) -> None:
        self.input = new_view(self.input)

    def text(self) -> str:
        return f"{self.kind}({self.input}, over={list(self.over)})"


@dataclass(eq=False)
class Reduce(OverDims):
    """A reduction; kind: "sum", "max", "prod" or "moments".

    The result has the other dimensions, in their order. Moments have a first dimension of 2: the means, and the sums of
    squared differences from them. The result is fp32, or fp64 for fp64 inputs; passes/narrow_reductions.py makes all
    but moments narrower.
    """


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and dilation of a convolution, (height, width) each, and its number of groups."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def __str__(self) -> str:
        return f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, groups={self.groups}"


@dataclass(eq=False)
class Conv(Operation):
    """A convolution of input [N, C, H, W] and weight [K, C / groups, R, S]."""

    input: View
    weight: View
    geometry: Geometry

    @property
    def operands(self) -> list[View]:
        return [self.input, self.weight]

    def change_operands(self, new_view: Callable[[View], View]) -> None:
        self.input, self.weight = new_view(self.input), new_view(self.weight)

    def text(self) -> str:
        return f"conv({self.input}, {self.weight}, {self.geometry})"


@dataclass(eq=False)
class ConvGrads(Operation):
    """Gradients of a convolution. wanted: whether those of the input and of the weight are computed."""

    grad: View
    input: View
    weight: View
    geometry: Geometry
    wanted: tuple[bool, bool]

    @property
    def operands(self) -> list[View]:
        return [self.grad, self.input, self.weight]

    def change_operands(self, new_view: Callable[[View], View]) -> None:
        self.grad, self.input, self.weight = map(new_view, self.operands)

    def text(self) -> str:
        names = [name for name, is_wanted in zip(("input", "weight"), self.wanted, strict=True) if is_wanted]
        return f"conv_grads({self.grad}, {self.input}, {self.weight}, {self.geometry}) of {', '.join(names)}"


@dataclass(eq=False)
class Casts(_OfInputs):
    """Casts of all inputs, which keep their layouts; a result may have additional rows of zeros at the end of its first
    dimension.

    Args:
        parts: the results are parts of one allocation (ir/custom_ops.py: packed_starts).
        spans: each further result is the memory of some of the others, which lie one after the other: the number of the
            first, and how many these are.
    """

    parts: bool
    spans: Sequence[tuple[int, int]] = ()


@dataclass(eq=False)
class Call(Operation):
    """A call of an operator of PyTorch.

    Args:
        args, kwargs: tensors are views, also in lists.
        lengths: of each list of tensors among the results.
        written: arguments that the operator changes in place.
        parts: the operator returns one tensor, whose slices along the first dimension are the results.
    """

    operator: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]
    lengths: tuple[int, ...] = ()
    written: tuple[View, ...] = ()
    parts: bool = False

    @property
    def operands(self) -> list[View]:
        return list(views_of((self.args, tuple(self.kwargs.values()))))

    def change_operands(self, new_view: Callable[[View], View]) -> None:
        self.args, self.kwargs = replaced(self.args, new_view), replaced(self.kwargs, new_view)
        self.written = tuple(map(new_view, self.written))

    @property
    def writes(self) -> list[Value]:
        return [view.value for view in self.written]

    @property
    def is_ordered(self) -> bool:
        return is_ordered(self.operator)

    def text(self) -> str:
        def text_of(argument) -> str:
            if isinstance(argument, (list, tuple)):
                return f"[{', '.join(map(text_of, argument))}]"
            return str(argument)

        arguments = [*map(text_of, self.args), *(f"{name}={text_of(value)}" for name, value in self.kwargs.items())]
        return f"{self.operator.name()}({', '.join(arguments)})"


def views_of(arguments) -> Iterator[View]:
    """Views among arguments of an operator, in order, also in lists."""
    if isinstance(arguments, View):
        yield arguments
    elif isinstance(arguments, (list, tuple)):
        for argument in arguments:
            yield from views_of(argument)


def replaced(arguments, new: Callable[[View], Any]):
    """The arguments with `new(view)` for each view, also in lists and dictionaries."""
    if isinstance(arguments, View):
        return new(arguments)
    if isinstance(arguments, (list, tuple)):
        return type(arguments)([replaced(argument, new) for argument in arguments])
    if isinstance(arguments, dict):
        return {name: replaced(argument, new) for name, argument in arguments.items()}
    return arguments


class Graph:
    """Operations in a topological order.

    Attributes:
        inputs: values of the tensors that a call passes.
        parts: values that are packed in an input, each with its view of that.
        outputs: results of a call: views, or constants.
        copies: values that copy a value in another layout (ir/contiguous.py).
        constants: elements of values that were computed at compile time, on the CPU.
        bounds: of values of whole numbers that rules asked for, the least and the most that an element can be, and
            whether fp32 has each of them (lowering/whole_numbers.py).
        joins: views, and the value that has them as its parts (passes/batching.py).
    """

    def __init__(self):
        self.inputs: list[Value] = []
        self.parts: dict[Value, View] = {}
        self.operations: list[Operation] = []
        self.outputs: list[View | Any] = []
        self.copies: dict[tuple[Value, Layout], Value] = {}
        self.constants: dict[Value, torch.Tensor] = {}
        self.bounds: dict[Value, tuple[float, float, bool]] = {}
        self.joins: dict[tuple, tuple[list[View], Value]] = {}
        self._count = 0

    def value(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> Value:
        """A value with the next number."""
        self._count += 1
        return Value(self._count - 1, layout, dtype, device)

    def give(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> Value:
        """Add an input."""
        self.inputs.append(self.value(layout, dtype, device))
        return self.inputs[-1]

    def take(self, view: View) -> Value:
        """Add a value that is packed in an input, where the view is. It counts as memory of its own."""
        layout = Layout(view.layout.sizes, view.layout.strides)
        part = self.value(layout, view.value.dtype, view.value.device)
        self.parts[part] = view
        return part

    def add(self, operation: Operation, results: Iterable[Typed]) -> list[Value]:
        """Append an operation with results of these layouts, data types and devices."""
        operation.results = [self.value(*typed) for typed in results]
        for result in operation.results:
            result.maker = operation
        self.operations.append(operation)
        return operation.results

    def readers(self) -> dict[Value, list[Operation | None]]:
        """The operations that read each value, once per operand; None stands for a result of the graph."""
        readers: dict[Value, list[Operation | None]] = {}
        for operation in self.operations:
            for view in operation.operands:
                readers.setdefault(view.value, []).append(operation)
        for view in self.output_views():
            readers.setdefault(view.value, []).append(None)
        return readers

    def uses(self) -> Counter[Value]:
        """How often each value is read; each result of the graph counts as a read."""
        operands = (view.value for operation in self.operations for view in operation.operands)
        return Counter(operands) + Counter(view.value for view in self.output_views())

    def substitute(self, instead: Mapping[Value, View]) -> None:
        """Replace values by views of others.

        Operations all of whose results are replaced are dropped. Every other operand and output that reads a replaced
        value reads the memory of the given view instead: it keeps its sizes and strides, and the offsets are added.
        The caller ensures that the elements lie there in the same order, and that no given view reads a value that is
        replaced itself.
        """
        self.operations = [
            operation
            for operation in self.operations
            if not operation.results or any(result not in instead for result in operation.results)
        ]
        for operation in self.operations:
            operation.change_operands(lambda view: substituted(view, instead))
        self.outputs = [substituted(out, instead) if isinstance(out, View) else out for out in self.outputs]

    def output_views(self) -> list[View]:
        """Results of the graph that are tensors."""
        return [output for output in self.outputs if isinstance(output, View)]

    def __str__(self) -> str:
        def typed(value: Value) -> str:
            return f"{value}: {str(value.dtype).removeprefix('torch.')}{value.layout}"

        lines = [f"given {typed(value)}" for value in self.inputs]
        lines += [f"{typed(value)} in {view}" for value, view in self.parts.items()]
        for operation in self.operations:
            results = ", ".join(map(typed, operation.results))
            lines.append(f"{results} = {operation.text()}" if results else operation.text())
        return "\n".join([*lines, f"gives {', '.join(map(str, self.outputs))}"])


def substituted(view: View, instead: Mapping[Value, View]) -> View:
    """The view in the memory of the view that replaces its value, if one does."""
    source, layout = instead.get(view.value), view.layout
    if source is None:
        return view
    return View(source.value, Layout(layout.sizes, layout.strides, layout.offset + source.layout.offset))
