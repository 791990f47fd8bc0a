"""Lower AOTAutograd's FX graphs to the compiler's (ir/graph.py).

View operators become views; the rules of this folder lower the others, or leave them as calls of PyTorch's operators.
Sizes are numbers: a graph with symbols is first traced with the sizes of a call (runtime/executable.py).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ...runtime.sizes import Real
from ..ir.custom_ops import CONSTANT, DONATED, USER_CAST, scale_in_place, scaled, unpack
from ..ir.fake_tensors import Unsupported, layout_of, real_tensors, typed
from ..ir.graph import Call, Graph, Typed, View, views_of
from ..ir.layout import Layout
from ..ir.stages import blamed, is_left_out, names_of
from . import RULES
from .pointwise import rounding_cast
from .unplanned import is_view, why_unknown, why_unplanned

aten = torch.ops.aten


def lower_fx(module: GraphModule) -> tuple[Graph, list[Tensor]]:
    """Lower a module.

    Returns:
        The graph, and the tensors that the module has as constants: they follow the module's inputs among the graph's.

    Raises:
        Unsupported: the graph cannot be planned; the message says why, and which line of the user's code has it.
    """
    return _Lowering(module).run()


def _is_number(value) -> bool:
    return isinstance(value, (int, float, bool, complex))


def _tensor_of(number, args) -> Tensor:
    """The number as a tensor beside these arguments: in fp64 if one of them is, as PyTorch has it."""
    wide = isinstance(number, float) and any(view.value.dtype == torch.float64 for view in views_of(list(args)))
    with real_tensors():
        return torch.tensor(number, dtype=torch.float64 if wide else None)


def _takes_tensor(argument) -> bool:
    """True if an argument of a schema is a tensor, or an optional one."""
    type_ = argument.real_type
    return (type_.getElementType() if type_.kind() == "OptionalType" else type_).kind() == "TensorType"


def _is_empty(value) -> bool:
    """True for a tensor of no elements, which PyTorch's operators make without a kernel."""
    return isinstance(value, Tensor) and any(isinstance(size, int) and size == 0 for size in value.shape)


def _scales_donated(node: Node) -> bool:
    """True if the node multiplies a tensor that is dead afterwards by one number. Done in place, that is no work if the
    number is 1."""
    tensor = node.args[0] if node.target is scaled else None
    return tensor is not None and tensor.op == "placeholder" and DONATED in tensor.meta and len(tensor.users) == 1


class _Lowering:
    """The lowering of one module."""

    def __init__(self, module: GraphModule):
        self.module, self.graph = module, Graph()
        self.known: dict[Node, Any] = {}  # views, lists of views, or constants
        self.constants: list[Tensor] = []

    def run(self) -> tuple[Graph, list[Tensor]]:
        nodes = list(self.module.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self.known[node] = self._input(node.meta["val"])
        for node in nodes:
            if node.op == "get_attr":
                self.known[node] = self._constant(operator.attrgetter(node.target)(self.module))
                self._note_elements(node)
        for node in nodes:
            if node.op == "call_function":
                self._call_function(node)
            elif node.op == "output":
                self.graph.outputs = [self._value(output) for output in node.args[0]]
        return self.graph, self.constants

    def _call_function(self, node: Node) -> None:
        """Lower a node, and note it in the operations that compute it."""
        first = len(self.graph.operations)
        try:
            with blamed("capture", [node]):
                self.known[node] = self._called(node)
                self._note_elements(node)
        except Unsupported as reason:
            raise Unsupported(f"{reason} (in {names_of([node])})") from reason
        for operation in self.graph.operations[first:]:
            operation.node = node

    def _input(self, value):
        """Add a tensor as an input of the graph, and return its view; numbers are constants."""
        if isinstance(value, Tensor):
            if reason := why_unknown([value]):
                raise Unsupported(f"a tensor is {reason}")
            input = self.graph.give(*typed(value))
            return View(input, input.layout)
        if isinstance(value, (int, float, bool)) or value is None:
            return value
        raise Unsupported(f"an input is of the type {type(value).__name__}")

    def _constant(self, value):
        """Add a tensor that is part of the module as an input of the graph."""
        if not isinstance(value, Tensor):
            raise Unsupported(f"the graph has a {type(value).__name__}")
        self.constants.append(value)
        return self._input(value)

    def _note_elements(self, node: Node) -> None:
        """Note the elements of a tensor that was computed at compile time."""
        if CONSTANT in node.meta and isinstance(view := self.known[node], View):
            self.graph.constants[view.value] = node.meta[CONSTANT]

    def _value(self, argument):
        """Views, lists of views, or constants in place of the nodes of an argument."""
        if isinstance(argument, Node):
            return self.known[argument]
        if isinstance(argument, (list, tuple)):
            return [self._value(item) for item in argument]
        return argument

    def _called(self, node: Node):
        """Lower a call to what the graph knows of its result: views or constants."""
        args, value, target = self._value(node.args), node.meta.get("val"), node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if isinstance(value, (int, float, bool, Real)):
            return value  # arithmetic of sizes
        if reason := why_unplanned(node):
            raise Unsupported(reason)
        kwargs = {name: self._value(argument) for name, argument in node.kwargs.items()}
        if (result := self._view(node, args, value)) is not None:
            return result
        if _scales_donated(node):
            return self._scaled_in_place(*args)
        rule = rounding_cast if USER_CAST in node.meta else RULES.get(target)
        if rule is not None and not is_left_out(node) and not _is_empty(value):
            if (result := rule(self.graph, value, *args, **kwargs)) is not None:
                return result
        return self._call(target, args, kwargs, value)

    def _scaled_in_place(self, tensor: View, factor: View) -> View:
        """The tensor times the factor, in its memory. It is a value of its own, so its readers wait for the call."""
        call = Call(scale_in_place, (tensor, factor), {})
        (value,) = self.graph.add(call, [Typed(tensor.layout, tensor.value.dtype, tensor.value.device)])
        return View(value, value.layout)

    def _view(self, node: Node, args, value):
        """Result of a view operator, by the layouts of the fake results; None for other operators."""
        if not is_view(node):
            return None
        source = args[0]
        if node.target is unpack:
            part = self.graph.take(View(source.value, Layout(*map(tuple, args[1:3]), args[3])))
            return View(part, part.layout)
        before = node.args[0].meta["val"].storage_offset()

        def view(tensor: Tensor) -> View:
            return View(source.value, layout_of(tensor, source.layout.offset + tensor.storage_offset() - before))

        return [view(tensor) for tensor in value] if isinstance(value, (list, tuple)) else view(value)

    def _call(self, target, args, kwargs, value):
        """Add a Call of PyTorch's operator. value: its fake result."""
        overload = target._schema.overload_name
        if len(args) == 2 and _is_number(args[1]) and overload in ("Tensor", "Tensor_mode"):
            target = getattr(target.overloadpacket, overload.replace("Tensor", "Scalar"), target)
        schema = target._schema
        several = len(schema.returns) != 1
        values = [] if not schema.returns else list(value) if several else [value]
        flat, lengths = [], []
        for result, returned in zip(values, schema.returns, strict=True):
            if str(returned.real_type) == "List[Tensor]":
                lengths.append(len(result))
                flat += result
            elif isinstance(result, Tensor) or result is None:
                flat.append(result)
        args = [
            self._constant(_tensor_of(arg, args)) if _is_number(arg) and _takes_tensor(argument) else arg
            for argument, arg in zip(schema.arguments, args, strict=False)
        ]
        written = tuple(
            view
            for argument, arg in zip(schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for view in (arg if isinstance(arg, list) else [arg])
            if isinstance(view, View)
        )
        nothing = Layout((0,), (1,)), torch.float32, torch.device("cpu")
        call = Call(target, tuple(args), kwargs, tuple(lengths), written)
        new_values = self.graph.add(call, [nothing if tensor is None else typed(tensor) for tensor in flat])
        if written:
            return written[0] if len(written) == 1 else list(written)
        views = iter(
            None if tensor is None else View(new, new.layout) for new, tensor in zip(new_values, flat, strict=True)
        )

        def views_like(result):
            if isinstance(result, (list, tuple)):
                return [next(views) for _ in result]
            return result if isinstance(result, (int, float)) else next(views)

        results = [views_like(result) for result in values]
        return results if several else results[0]
