"""Functions that change tensors in place, such as an optimizer's step(): traced, and added to the end of a graph as
element-wise operators, which the compiler fuses."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from ..compiler.decompositions.table import decompositions
from ..compiler.ir.custom_ops import after
from ..compiler.lowering.unplanned import is_view
from .update import MissingState, Untraceable

aten = torch.ops.aten


def compiling() -> contextlib.AbstractContextManager:
    """Let torch.compiler.is_compiling() be true: optimizers then read no values of tensors."""
    return mock.patch.object(torch.compiler, "_is_compiling_flag", True)  # torch 2.11 has no context of its own


def traced(update: Callable[..., None], nodes: Sequence[Node], name: str, is_checked: bool) -> GraphModule:
    """The graph of a function that changes some of its arguments, which are tensors, in place.

    Args:
        nodes: those of another graph that are like the arguments.
        name: of the function, for messages.
        is_checked: whether it is traced again, which finds if it depends on Python's state, such as counters and random
            numbers.

    Raises:
        Untraceable: it reads values of tensors, makes tensors of Python's numbers, or differs from call to call.
    """
    examples = [node.meta["val"] for node in nodes]

    def run(*tensors):
        with torch.no_grad(), _SingleTensors():
            update(*tensors)

    def trace() -> GraphModule:
        try:
            with detect_fake_mode(examples), compiling():
                return make_fx(torch.func.functionalize(run), decompositions())(*examples)
        except (MissingState, Untraceable):
            raise
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            raise Untraceable(f"{name} cannot be traced ({type(error).__name__}: {first})") from error

    module = trace()
    if module.graph.find_nodes(op="get_attr"):
        raise Untraceable(f"{name} makes tensors of Python's numbers")
    if is_checked and trace().graph.python_code("self").src != module.graph.python_code("self").src:
        raise Untraceable(f"{name} differs from call to call")
    _drop_copies(module.graph)
    return module


def postponed(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """The nodes for use after all results of the graph are computed, and after the writes at its end."""
    output = graph.output_node()
    results = [node for node in output.all_input_nodes if isinstance(node.meta.get("val"), Tensor)]
    with graph.inserting_before(output):
        late: list[Node] = []
        for node in nodes:
            late.append(graph.call_function(after, (node, late[:1] or [*nodes, *results])))
            late[-1].meta["val"] = node.meta["val"]
    return late


def inline(module: GraphModule, graph: Graph, inputs: Sequence[Node], late: Sequence[Node]) -> dict[Node, Node]:
    """Add a traced function at the end of a graph.

    No kernel that computes a result of the graph may write to an input. So an exception before the function leaves all
    as it was.

    Args:
        inputs: nodes for the function's arguments.
        late: those that come after all results.

    Returns:
        New values of inputs that are no inputs of the graph.
    """
    known = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    copies = module.graph.find_nodes(op="call_function", target=aten.copy_.default)  # the last nodes
    overwritten = {copy.args[0] for copy in copies}
    follows, changed = set(late), {}
    early: dict[tuple, tuple[list, list]] = {}  # copies of inputs, and of what follows from none that are late
    with graph.inserting_before(graph.output_node()):
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target is not aten.copy_.default:
                known[node] = copy = graph.node_copy(node, known.__getitem__)
                if not follows.isdisjoint(copy.all_input_nodes):
                    follows.add(copy)
        sources = {copy.args[1]: known[copy.args[1]] for copy in copies}
        for node, source in sources.items():
            if _base(node) in overwritten:  # its new value would be copied
                sources[node] = graph.call_function(aten.clone.default, (source,))
                sources[node].meta["val"] = node.meta["val"]
        for copy in copies:
            target, source = known[copy.args[0]], sources[copy.args[1]]
            if target.op != "placeholder":
                changed[target] = source
            elif source in follows and _base(copy.args[1]).op != "placeholder":
                graph.call_function(aten.copy_.default, (target, source)).meta = dict(copy.meta)
            else:
                value = target.meta["val"]
                copied = early.setdefault((value.dtype, value.device), ([], []))
                copied[0].append(target)
                copied[1].append(source)
        for copied in early.values():
            graph.call_function(aten._foreach_copy_.default, copied)
    return changed


def _base(node: Node) -> Node:
    """The node whose memory a view shows."""
    while is_view(node):
        node = node.args[0]
    return node


def check_apart(tensors: Sequence[Tensor], whose: str) -> None:
    """Raise Untraceable if tensors share memory. Fake ones have none."""
    real = [tensor for tensor in tensors if tensor.numel() and not isinstance(tensor, FakeTensor)]
    ranges = sorted((tensor.data_ptr(), _end(tensor)) for tensor in real)
    if any(one[1] > other[0] for one, other in itertools.pairwise(ranges)):
        raise Untraceable(f"{whose} share memory")


def _end(tensor: Tensor) -> int:
    places = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (places + 1) * tensor.itemsize


def _drop_copies(graph: Graph) -> None:
    """Drop the function's copies: the graph writes inputs at its end only."""
    for node in graph.find_nodes(op="call_function", target=aten.clone.default):
        if node.args[0].op == "placeholder" and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
    for node in graph.find_nodes(op="call_function", target=aten.copy.default):
        node.replace_all_uses_with(node.args[1])
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        if node.args[0] is node.args[1]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()


class _SingleTensors(TorchFunctionMode):
    """Functions of lists by those of single tensors, and numbers that are tensors of the plan, such as learning rates,
    by products."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name.startswith("_foreach_"):
            if "addc" in name and len(args) > 3:
                args, kwargs = args[:3], {"value": args[3]}
            places = range(next(len(arg) for arg in args if isinstance(arg, (list, tuple))))
            with self:
                results = [_single(name, _at(args, n), _at(kwargs, n)) for n in places]
            return None if name.endswith("_") else results
        plain = name.removesuffix("_")
        by_number = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}.get(plain)
        number = kwargs.get(by_number)
        if isinstance(number, Tensor):
            first, *others = args
            kwargs = {key: value for key, value in kwargs.items() if key != by_number}
            if plain.startswith("addc"):
                others = [others[0] / others[1] if plain == "addcdiv" else others[0] * others[1]]
                func = Tensor.add_ if name.endswith("_") else Tensor.add
            return func(first, others[0] * number, **kwargs)
        if plain == "lerp" and isinstance(args[-1], Tensor):
            start, end, weight = args
            dtype = torch.promote_types(start.dtype, weight.dtype)  # a weight in bf16 would be 0.4% off
            result = torch.lerp(start.to(dtype), end.to(dtype), weight.to(dtype)).to(start.dtype)
            return start.copy_(result) if name.endswith("_") else result
        return func(*args, **kwargs)


def _single(name: str, args: list, kwargs: dict) -> Any:
    plain = name.removeprefix("_foreach_").replace("maximum", "clamp_min").replace("minimum", "clamp_max")
    if hasattr(Tensor, plain):
        return getattr(args[0] if isinstance(args[0], Tensor) else torch, plain)(
            *(args[1:] if isinstance(args[0], Tensor) else args), **kwargs
        )
    function = getattr(torch, plain.removesuffix("_"))
    return args[0].copy_(function(*args, **kwargs)) if plain.endswith("_") else function(*args, **kwargs)


def _at(values: Any, number: int) -> Any:
    """The arguments for one tensor of the lists among them."""
    if isinstance(values, dict):
        return dict(zip(values, _at(values.values(), number), strict=True))
    return [value[number] if isinstance(value, (list, tuple)) else value for value in values]
