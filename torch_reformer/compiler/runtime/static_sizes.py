"""Graphs with symbolic sizes, as graphs of the sizes of one call."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.utils._pytree import tree_leaves, tree_map

from ..ir.fake_tensors import Unsupported, is_plain
from ..ir.fx_utils import copied

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _numbers(value) -> Iterator[Any]:
    """Symbolic numbers among the sizes, strides and offsets of fake tensors."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            strides = (*leaf.stride(), leaf.storage_offset()) if leaf.layout == torch.strided else ()
            yield from (number for number in (*leaf.shape, *strides) if isinstance(number, _SYMBOLIC))
        elif isinstance(leaf, _SYMBOLIC):
            yield leaf


def depends_on_sizes(value) -> bool:
    """True if a fake value depends on sizes or numbers that the graph's inputs have."""
    return any(free_symbols(number) - free_unbacked_symbols(number) for number in _numbers(value))


def depends_on_values(value) -> bool:
    """True if a fake value's sizes depend on values of tensors, such as the number of elements that are not zero."""
    return any(free_unbacked_symbols(number) for number in _numbers(value))


def is_nested_int(value) -> bool:
    """True for the number that stands for the varying lengths of a jagged tensor, which can only be compared for
    equality."""
    return isinstance(value, torch.SymInt) and isinstance(value.node._hint, torch.SymInt)


def static(module: GraphModule, args: Sequence[Any]) -> GraphModule:
    """A copy of the graph with fake values of its nodes for arguments of these sizes. What depends on values of tensors
    keeps its symbols.

    Raises:
        Unsupported: an operator cannot be traced with these sizes.
    """
    sized = GraphModule(module, copied(module.graph))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, torch.no_grad():
            fake = [mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in args]
            _Sizes(sized, fake).run(*fake)
    except RuntimeError as error:
        raise Unsupported(f"the sizes are not known before the graph runs: {error}") from error
    return sized


class _Unknown:
    """Stands for a value whose sizes depend on values."""


class _Sizes(Interpreter):
    """Notes the fake values of nodes. Those of operators that fake tensors cannot answer follow from the symbols of the
    graph's inputs."""

    def __init__(self, module: GraphModule, args: Sequence[Any]):
        super().__init__(module)
        self.symbols: dict[Any, Any] = {}
        for node, arg in zip(module.graph.find_nodes(op="placeholder"), args, strict=True):
            symbolic = node.meta.get("val")
            if isinstance(arg, Tensor):
                pairs = zip((*symbolic.shape, *symbolic.stride()), (*arg.shape, *arg.stride()), strict=True)
            else:
                pairs = [(symbolic, arg)]
            for symbol, number in pairs:
                if isinstance(symbol, _SYMBOLIC) and symbol.node.expr.is_symbol and not depends_on_values(symbol):
                    self.symbols[symbol.node.expr] = number

    def run_node(self, node: Node):
        value = self._of_symbols(node) if self._is_unknown(node) else self._traced(node)
        if node.op != "output":
            node.meta["val"] = _merged(value, node.meta.get("val"))
        return value

    def _is_unknown(self, node: Node) -> bool:
        if node.op == "placeholder":
            return depends_on_values(node.meta.get("val"))
        if node.op != "call_function" or node.target is operator.getitem:
            return False
        operands = tree_leaves([self.env[operand] for operand in node.all_input_nodes])
        is_opaque = isinstance(node.target, HigherOrderOperator) and "val" in node.meta
        return is_opaque or _Unknown in operands

    def _traced(self, node: Node):
        try:
            return super().run_node(node)
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self._of_symbols(node)

    def _of_symbols(self, node: Node):
        """The node's value by its symbols."""
        if node.op == "placeholder":
            super().run_node(node)
        return tree_map(self._known, node.meta.get("val"))

    def _known(self, leaf):
        if not isinstance(leaf, (Tensor, *_SYMBOLIC)):
            return leaf
        if not isinstance(leaf, Tensor):
            return self._number(leaf)
        if not is_plain(leaf):
            return _Unknown
        sizes, strides = map(self._number, leaf.shape), map(self._number, leaf.stride())
        numbers = [*sizes], [*strides]
        if _Unknown in numbers[0] + numbers[1]:
            return _Unknown
        return torch.empty_strided(*numbers, dtype=leaf.dtype, device=leaf.device)

    def _number(self, number):
        if not isinstance(number, _SYMBOLIC):
            return number
        expression = number.node.expr.xreplace(self.symbols)
        if getattr(expression, "free_symbols", ()):
            return _Unknown
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(number)](expression)


def _merged(value, symbolic):
    """The value, with symbolic ones for unknown parts."""
    if isinstance(value, (list, tuple)) and symbolic is not None:
        return [_merged(*pair) for pair in zip(value, symbolic, strict=True)]
    return symbolic if value is _Unknown else value
