"""Graphs with symbolic sizes as graphs of other sizes: plain numbers, or sizes that know their symbols."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node

from ...runtime.sizes import Size, as_float
from ..ir.fake_tensors import Unsupported, is_plain
from ..ir.fx_utils import copied
from ..ir.layout import Layout, span
from ..ir.sized_tensor import SizedTensor
from .pickled_graph import pickled, unpickled

_PLACES = {"number": lambda arg, d: arg, "size": Tensor.size, "stride": Tensor.stride}

_FLOAT_ARITHMETIC = {each: each for each in (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg)}
_FLOAT_ARITHMETIC[torch.sym_float] = as_float


class SymbolicGraph:
    """A graph with symbolic sizes. It pickles.

    Raises:
        Unsupported: an argument does not show a symbol, such as a size that depends on values.
    """

    def __init__(self, module: GraphModule):
        self.__dict__["module"] = module
        self._places: dict[str, tuple[int, str, int]] = {}  # of symbols: argument, and what of it they are
        for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
            value = node.meta["val"]
            if isinstance(value, Tensor):
                for d, size in enumerate(value.shape):
                    self._note(size, (place, "size", d))
                for d, stride in enumerate(value.stride()):
                    self._note(stride, (place, "stride", d))
            else:
                self._note(value, (place, "number", 0))

    @functools.cached_property
    def module(self) -> GraphModule:
        return unpickled(self._pickled)

    def __getstate__(self) -> dict[str, Any]:
        return {"_places": self._places, "_pickled": pickled(self.module)}

    def _note(self, value: Any, place: tuple[int, str, int]) -> None:
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            self._places.setdefault(value.node.expr.name, place)

    def values(self, args: Sequence[Any]) -> dict[str, int]:
        """The symbols' values for these arguments."""
        return {name: _PLACES[kind](args[place], d) for name, (place, kind, d) in self._places.items()}

    def at(self, sizes: Mapping[str, int | Size]) -> GraphModule:
        """A copy of the graph with other values of its nodes: fake tensors for plain numbers, else stand-ins.

        Raises:
            Unsupported: a value of the graph is no plain tensor, or is computed in another way than sizes are.
        """
        is_sized = any(type(size) is Size for size in sizes.values())
        sized, number = GraphModule(self.module, copied(self.module.graph)), _Numbers(sizes)
        with contextlib.nullcontext() if is_sized else FakeTensorMode():
            for node in sized.graph.nodes:
                if isinstance(node.meta.get("val"), torch.SymFloat):
                    node.meta["val"] = _computed_float(node)
                elif "val" in node.meta:
                    node.meta["val"] = _value(node.meta["val"], number, is_sized)
        return sized


def fits(module: GraphModule, args: Sequence[Any]) -> bool:
    """True if arguments have the sizes and strides of the graph's inputs."""
    return all(is_like(arg, input) for arg, input in zip(args, inputs_of(module), strict=True))


def inputs_of(module: GraphModule) -> list[Any]:
    """Sizes and strides of the graph's inputs that are tensors; the values of others."""
    values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    return [(tuple(value.shape), tuple(value.stride())) if isinstance(value, Tensor) else value for value in values]


def is_like(arg: Any, input: Any) -> bool:
    """True if the argument is such an input."""
    if isinstance(arg, Tensor):
        if (arg.shape, arg.stride()) == input:
            return True
        return isinstance(input, tuple) and Layout(tuple(arg.shape), arg.stride()).matches(Layout(*input))
    return repr(arg) == repr(input)


def _computed_float(node: Node) -> Any:
    """A number that is computed of sizes by floating-point arithmetic, in the graph's order."""
    if node.target not in _FLOAT_ARITHMETIC:
        raise Unsupported(f"a number of the graph is computed of sizes by {node.target}")
    return _FLOAT_ARITHMETIC[node.target](*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in node.args))


def _value(value: Any, number: _Numbers, is_sized: bool) -> Any:
    if isinstance(value, Tensor):
        if not is_plain(value):
            raise Unsupported("a tensor is no plain one")
        shape, strides = (tuple(map(number, numbers)) for numbers in (value.shape, value.stride()))
        offset = number(value.storage_offset())
        if is_sized:
            return SizedTensor(value, shape, strides, offset)
        if not offset:
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        memory = torch.empty(offset + span(Layout(shape, strides)), dtype=value.dtype, device=value.device)
        return memory.as_strided(shape, strides, offset)
    if isinstance(value, (list, tuple)):
        return type(value)([_value(part, number, is_sized) for part in value])
    return number(value)


class _Numbers:
    """Numbers of sizes that are expressions of symbols."""

    def __init__(self, sizes: Mapping[str, int | Size]):
        self.known: dict[sympy.Expr, Any] = {}
        self.sizes = sizes

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return self._of(value.node.expr)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise Unsupported("a number of the graph is computed of sizes, and is no size")
        return value

    def _of(self, expression: sympy.Expr) -> Any:
        if expression not in self.known:
            self.known[expression] = self._computed(expression)
        return self.known[expression]

    def _computed(self, expression: sympy.Expr) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if expression.name not in self.sizes:
                raise Unsupported("the sizes are not known before the graph runs")
            return self.sizes[expression.name]
        operands = [self._of(operand) for operand in expression.args]
        kind = type(expression).__name__
        if kind == "Add":
            return sum(operands[1:], operands[0])
        if kind == "Mul":
            return math.prod(operands)
        if kind == "Pow" and expression.args[1].is_Integer and expression.args[1] > 0:
            return operands[0] ** operands[1]
        if kind in ("FloorDiv", "CleanDiv"):
            return operands[0] // operands[1]
        if kind in ("Mod", "PythonMod"):
            return operands[0] % operands[1]
        if kind in ("Max", "Min"):
            return max(operands) if kind == "Max" else min(operands)
        raise Unsupported(f"a size is computed by {kind}")
