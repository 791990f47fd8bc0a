"""AOTAutograd's graphs as the compiler's (ir/graph.py): walks through one, takes views as what they are, asks rules/ for the
other operators, and inputs what none of them takes to PyTorch. Sizes are numbers here: a graph with symbols is traced
for those of a call first (runtime/executable.py)."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.custom_ops import DONATED, USER_CAST, scaled
from ..ir.fake_tensors import Unsupported, is_plain, layout_of, real_tensors, typed
from ..ir.graph import Call, Graph, View, views_of
from ..ir.layout import Layout
from ..ir.stages import blamed, is_left_out, told
from . import RULES
from .pointwise import rounding_cast

aten = torch.ops.aten
SCALE = torch.ops.reformer._scale_.default
_ADVICE = "With torch.compiler.disable on the function that has this, the rest of the model is planned."
_QUANTISE = ("aten::quantize_per_", "aten::_empty_affine_", "aten::_empty_per_channel_", "aten::_make_per_")


def lower_fx(module: GraphModule) -> tuple[Graph, list[Tensor]]:
    """The graph, and the tensors that are part of it: they follow the module's own inputs among the graph's.

    Raises:
        Unsupported: with a sentence.
    """
    return _Lowering(module).run()


def _is_number(value) -> bool:
    return isinstance(value, (int, float, bool, complex))


def _tensor_of(number, args) -> Tensor:
    """The number as an operand of these arguments: in fp64 beside such a tensor, as PyTorch has it."""
    wide = isinstance(number, float) and any(each.value.dtype == torch.float64 for each in views_of(list(args)))
    with real_tensors():
        return torch.tensor(number, dtype=torch.float64 if wide else None)


def _takes_tensor(argument) -> bool:
    type_ = argument.real_type
    return (type_.getElementType() if type_.kind() == "OptionalType" else type_).kind() == "TensorType"


def _scales_donated(node: Node) -> bool:
    """Whether it multiplies a tensor that nobody needs afterwards by one number: in place that is nothing to do where
    the number is 1."""
    tensor = node.args[0] if node.target is scaled else None
    return tensor is not None and tensor.op == "placeholder" and DONATED in tensor.meta and len(tensor.users) == 1


class _Lowering:
    def __init__(self, module: GraphModule):
        self.module, self.graph = module, Graph()
        self.known: dict[Node, Any] = {}  # views, lists of these, or constants
        self.constants: list[Tensor] = []

    def run(self) -> tuple[Graph, list[Tensor]]:
        nodes = list(self.module.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self.known[node] = self._given(node.meta["val"])
        for node in nodes:
            if node.op == "get_attr":
                self.known[node] = self._constant(operator.attrgetter(node.target)(self.module))
        for node in nodes:
            if node.op == "call_function":
                self._call_function(node)
            elif node.op == "output":
                self.graph.outputs = [self._value(each) for each in node.args[0]]
        return self.graph, self.constants

    def _call_function(self, node: Node) -> None:
        first = len(self.graph.operations)
        try:
            with blamed("capture", [node]):
                self.known[node] = self._called(node)
        except Unsupported as why:
            raise Unsupported(f"{why} (in {told([node])}). {_ADVICE}") from why
        for operation in self.graph.operations[first:]:
            operation.node = node

    def _given(self, value):
        if isinstance(value, Tensor):
            if not is_plain(value):
                raise Unsupported("a tensor is sparse, quantised or a lazy conjugate")
            given = self.graph.give(*typed(value))
            return View(given, given.layout)
        if isinstance(value, (int, float, bool)) or value is None:
            return value
        raise Unsupported(f"an input is of the type {type(value).__name__}")

    def _constant(self, value):
        if not isinstance(value, Tensor):
            raise Unsupported(f"the graph has a {type(value).__name__}")
        self.constants.append(value)
        return self._given(value)

    def _value(self, argument):
        """What an argument of a node is here."""
        if isinstance(argument, Node):
            return self.known[argument]
        if isinstance(argument, (list, tuple)):
            return [self._value(each) for each in argument]
        return argument

    def _called(self, node: Node):
        args, value, target = self._value(node.args), node.meta.get("val"), node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if isinstance(value, (int, float, bool)):
            return value  # arithmetic of sizes
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(f"{target} is no operator")
        kwargs = {name: self._value(each) for name, each in node.kwargs.items()}
        if (found := self._view(node, args, value)) is not None:
            return found
        if _scales_donated(node):
            target = SCALE
        named = rounding_cast if USER_CAST in node.meta else RULES.get(target)
        rule = None if is_left_out(node) else named
        if rule is not None and (found := rule(self.graph, value, *args, **kwargs)) is not None:
            return found
        return self._call(target, args, kwargs, value)

    def _view(self, node: Node, args, value):
        """For what only looks at memory in another way: the fake tensors know how."""
        infos = [each.alias_info for each in node.target._schema.returns]
        if node.target is not aten._unsafe_view.default:
            if not any(infos) or any(info is not None and info.is_write for info in infos):
                return None
        if not args or not isinstance(args[0], View):
            return None
        of, before = args[0], node.args[0].meta["val"].storage_offset()

        def view(tensor: Tensor) -> View:
            if not is_plain(tensor):
                raise Unsupported(f"{node.target.name()} gives a lazy conjugate or the like")
            if tensor.dtype != of.value.dtype:
                raise Unsupported(f"{node.target.name()} looks at memory in another data type")
            return View(of.value, layout_of(tensor, of.layout.offset + tensor.storage_offset() - before))

        return [view(each) for each in value] if isinstance(value, (list, tuple)) else view(value)

    def _call(self, target, args, kwargs, value):
        if len(args) == 2 and _is_number(args[1]) and target._schema.overload_name == "Tensor":
            target = getattr(target.overloadpacket, "Scalar", target)
        schema = target._schema
        several = len(schema.returns) != 1
        values = [] if not schema.returns else list(value) if several else [value]
        flat, lengths = [], []
        for each, returned in zip(values, schema.returns, strict=True):
            if str(returned.real_type) == "List[Tensor]":
                lengths.append(len(each))
                flat += each
            elif isinstance(each, Tensor) or each is None:
                flat.append(each)
            elif not (several and isinstance(each, (int, float))):
                raise Unsupported(f"{target.name()} gives a result of the type {type(each).__name__}")
        # Fake results of operators that quantise are plain.
        if target.name().startswith(_QUANTISE) or not all(each is None or is_plain(each) for each in flat):
            raise Unsupported(f"{target.name()} gives a sparse or quantised tensor")
        args = [
            self._constant(_tensor_of(each, args)) if _is_number(each) and _takes_tensor(argument) else each
            for argument, each in zip(schema.arguments, args, strict=False)
        ]
        written = tuple(
            each
            for argument, each in zip(schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(each, View)
        )
        nothing = Layout((0,), (1,)), torch.float32, torch.device("cpu")
        call = Call(target, tuple(args), kwargs, tuple(lengths), written)
        made = self.graph.add(call, [nothing if each is None else typed(each) for each in flat])
        if written:
            return written[0] if len(written) == 1 else list(written)
        views = iter(None if each is None else View(new, new.layout) for new, each in zip(made, flat, strict=True))

        def result(each):
            if isinstance(each, (list, tuple)):
                return [next(views) for _ in each]
            return each if isinstance(each, (int, float)) else next(views)

        found = [result(each) for each in values]
        return found if several else found[0]
