"""Properties of nodes of FX graphs, and sets of operators that have one property."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from .digits import joined
from .fake_tensors import layout_of
from .layout import Layout
from .sized_results import sized_again
from .sized_tensor import SizedTensor

aten = torch.ops.aten

_OF_MEMORY = {
    *(aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default),
    *(aten._reshape_alias.default, aten._reshape_alias_copy.default),
}


def is_element_wise(node: Node) -> bool:
    """True if PyTorch tags the operator as pointwise, or if it is a cast."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target is aten._to_copy.default


def is_operator(node: Node) -> bool:
    """True for a call of an operator of PyTorch's dispatcher."""
    return isinstance(node.target, OpOverload)


def is_random(node: Node) -> bool:
    """True for an operator that draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_higher_order(node: Node) -> bool:
    """True for an operator that takes graphs or other operators as arguments."""
    return isinstance(node.target, HigherOrderOperator)


def values_of(node: Node) -> list:
    """The fake values that a node gives, also in lists."""
    return tree_leaves(node.meta.get("val"))


def copied(graph: Graph) -> Graph:
    """A copy of the graph, as copy.deepcopy gives one, without its warning (of PyTorch's TreeSpec)."""
    other, nodes = Graph(tracer_cls=graph._tracer_cls), {}
    results, output = other.graph_copy(graph, nodes, return_output_node=True)
    other.output(results, output.type).meta = copy.copy(output.meta)
    other._codegen = copy.copy(graph._codegen)
    return other


class Snapshot:
    """A graph as it is now. Copying it node by node is left for when it is needed."""

    def __init__(self, graph: Graph):
        self._tracer, self._codegen = graph._tracer_cls, copy.copy(graph._codegen)
        self._nodes = [
            (node, (node.op, node.target, node.args, node.kwargs, node.name, node.type), dict(node.meta))
            for node in graph.nodes
        ]

    def graph(self) -> Graph:
        """A copy of the graph, with Dynamo's notes on its inputs."""
        other, copies = Graph(tracer_cls=self._tracer), {}
        for node, (op, target, *arguments, name, type_), meta in self._nodes:
            args, kwargs = torch.fx.map_arg(arguments, copies.__getitem__)
            copies[node] = new = other.create_node(op, target, args, kwargs, name, type_)
            new.meta = dict(meta)
            if hasattr(node, "_dynamo_source"):
                new._dynamo_source = node._dynamo_source
        other._codegen = copy.copy(self._codegen)
        return other


def given_again(node: Node, changed: dict[Node, object]):
    """The node's result, computed again from its operands' fake values; changed: those that replace `meta["val"]`.

    Raises:
        RuntimeError: the operator can't take these operands, or looks for elements where the old ones had them.
    """
    if changed and node.target in _OF_MEMORY:
        raise RuntimeError("the operator reads a place in memory")

    def value(operand: Node):
        return changed.get(operand, operand.meta.get("val"))

    operands = tree_leaves([value(operand) for operand in node.all_input_nodes])
    if any(type(operand) is SizedTensor for operand in operands):
        return sized_again(node, *torch.fx.map_arg((node.args, node.kwargs), value))
    mode = next(operand.fake_mode for operand in operands if isinstance(operand, Tensor))
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
    with mode, torch.no_grad():
        result = node.target(*args, **kwargs)
    if node.target is aten.view.default and not _is_view(args[0], tuple(result.shape)):
        raise RuntimeError("the strides do not allow the view")
    return result


def _is_view(tensor: Tensor, sizes: tuple[int, ...]) -> bool:
    """True if the tensor's strides allow a view of these sizes. A fake tensor with a dimension of one element gives one
    where they do not (torch 2.13)."""
    if not all(isinstance(number, int) for number in (*tensor.shape, *tensor.stride(), *sizes)):
        return True
    layout = layout_of(tensor)
    dims = zip(reversed(layout.sizes), reversed(layout.strides), strict=True)
    runs = joined((size, stride) for size, stride in dims if size != 1)
    ends = set(itertools.accumulate(reversed(sizes), operator.mul))
    return not layout.numel or all(inner * count in ends for inner, count, _ in runs)


def in_order(module: GraphModule, node: Node, strides: tuple[int, ...]) -> Node:
    """Add a copy with these strides of a result of the graph, before the output node. Elements that the strides repeat
    are copied once."""
    (output,) = module.graph.find_nodes(op="output")

    def add(target, *args) -> Node:
        with module.graph.inserting_before(output):
            new = module.graph.call_function(target, args)
        new.meta["val"] = given_again(new, {})
        return new

    whole = node.meta["val"].shape
    for d, (size, stride) in enumerate(zip(whole, strides, strict=True)):
        if size > 1 and not stride:
            node = add(aten.slice.Tensor, node, d, 0, 1)
    shape = node.meta["val"].shape
    with module.graph.inserting_before(output):
        memory = module.graph.call_function(aten.new_empty_strided.default, (node, shape, strides))
        copy = module.graph.call_function(aten.copy.default, (memory, node))
    memory.meta["val"] = copy.meta["val"] = node.meta["val"].new_empty_strided(shape, strides)
    return copy if shape == whole else add(aten.expand.default, copy, whole)


def arguments_of(node: Node) -> dict[str, object]:
    """The arguments of an operator's call by their names, with the default values of those that are not given."""
    values = {argument.name: argument.default_value for argument in node.target._schema.arguments}
    return values | dict(zip(values, node.args, strict=False)) | node.kwargs


def base_of(node: Node) -> Node:
    """The node that a chain of views starts from; the node itself if it is no view."""
    while is_view(node):
        node = node.args[0]
    return node


def is_view(node: Node) -> bool:
    """True if the operator only gives a view of its first argument."""
    return getattr(node.target, "is_view", False)


def reads_memory(node: Node) -> bool:
    """True if an operator reads the node, or a view of it, by places in memory instead of dimensions."""
    return any(user.target in _OF_MEMORY or (is_view(user) and reads_memory(user)) for user in node.users)


def is_result(node: Node) -> bool:
    """True if the node or a view of it is a result of the graph."""
    return any(user.op == "output" or (is_view(user) and is_result(user)) for user in node.users)


def shares_memory(node: Node) -> bool:
    """True for a view, and for _unsafe_view, whose schema does not say that its result is one."""
    return is_view(node) or node.target is aten._unsafe_view.default


def real_number(value):
    """The value if it is a real number, else None."""
    return value if isinstance(value, (int, float, bool)) else None


# Operators whose result has one number in all elements, and that number as a function of the operator's arguments.
CONSTANTS: dict[Callable, Callable] = {
    aten.full.default: lambda sizes, number: real_number(number),
    aten.full_like.default: lambda like, number: real_number(number),
    aten.scalar_tensor.default: real_number,
    aten.zeros.default: lambda *_: 0.0,
    aten.zeros_like.default: lambda *_: 0.0,
    aten.ones.default: lambda *_: 1.0,
    aten.ones_like.default: lambda *_: 1.0,
    aten.new_zeros.default: lambda *_: 0.0,
}
constant_pad = torch.ops.aten.constant_pad_nd.default
NEAREST = (
    *(aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d),
    *(aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d),
)
UPSAMPLINGS = (
    *(*NEAREST, aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d),
    aten.upsample_bicubic2d,
)
SUMS = {aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default}
# Those of lowering/reductions.py.
REDUCTIONS = SUMS | {aten.amax.default, aten.amin.default, aten.max.default, aten.min.default}
REDUCTIONS |= {getattr(op, kind) for op in (aten.any, aten.all) for kind in ("default", "dim", "dims")}
REDUCTIONS |= {aten.var_mean.correction, aten.var.correction, aten.prod.default, aten.prod.dim_int}
VIEWS = {aten.view.default, aten.unsqueeze.default, aten.squeeze.dims, aten.expand.default, aten.permute.default}
VIEWS |= {aten.alias.default}


def gradient_of(operator: OpOverloadPacket) -> OpOverload:
    """The operator that computes another one's gradient, by PyTorch's way of naming them."""
    name = operator._qualified_op_name.split("::")[1]
    return getattr(aten, f"{name}_backward").default


def size_of(node: Node) -> int:
    """Number of elements of a node's tensor; 0 if it is no tensor or its sizes are symbols."""
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) and isinstance(value.numel(), int) else 0


def bytes_of(node: Node) -> int:
    """Bytes of a tensor whose sizes are known; else 0."""
    size = size_of(node)
    return size * node.meta["val"].dtype.itemsize if size else 0


def is_static(module: GraphModule) -> bool:
    """True if no tensor of the graph has a stride that is a symbol."""
    values = [node.meta.get("val") for node in module.graph.nodes]
    strides = [value.stride() for value in values if isinstance(value, Tensor)]
    return all(isinstance(stride, int) for of_tensor in strides for stride in of_tensor)


def in_order_of_operand(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
    """The result of a reduction with its dimensions in the operand's order of memory; the value itself if they are, or
    if a size is a symbol."""
    if not all(isinstance(size, int) for size in node.args[0].meta["val"].shape):
        return value
    operand = layout_of(changed.get(node.args[0], node.args[0].meta["val"]))
    strides = operand.strides
    if value.dim() < len(strides):
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        dims = [dims] if isinstance(dims, int) else dims or range(len(strides))
        over = {d % len(strides) for d in dims}
        strides = tuple(stride for d, stride in enumerate(strides) if d not in over)
    sizes = tuple(value.shape)
    if any(size > 1 and not stride for size, stride in zip(sizes, strides, strict=True)):
        return value  # repeated elements have no order
    packed = Layout(sizes, strides).packed
    return value if packed.matches(layout_of(value)) else value.new_empty_strided(sizes, packed.strides)


def followers(module: GraphModule, nodes: list[Node]) -> set[Node]:
    """The nodes, and all nodes that depend on them."""
    followers = set(nodes)
    for node in module.graph.nodes:
        if not followers.isdisjoint(node.all_input_nodes):
            followers.add(node)
    return followers
