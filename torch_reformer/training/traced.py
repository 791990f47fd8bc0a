"""An optimizer's update by tracing its own step(): element-wise operators, which the compiler fuses."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from ..compiler.decompositions.table import decompositions
from ..compiler.ir.custom_ops import after
from .update import MissingState, Owned, State, Untraceable, Update

aten = torch.ops.aten
# Settings under which PyTorch's optimizers compute one tensor after the other, without numbers of the host.
_TRACED = {"capturable": True, "foreach": False, "fused": False}


class Traced(Update):
    """The update of any optimizer whose step() can be traced. It may read and change parameters, their gradients, their
    state and its settings; a step() that changes anything else is refused."""

    has_constants = True

    def __init__(self, optimizer: Optimizer):
        super().__init__(optimizer)
        self._names: dict[nn.Parameter, tuple] = {}

    def rate_dtype(self, param: nn.Parameter) -> torch.dtype:
        return torch.float64 if param.dtype == torch.float64 else torch.float32

    def has_state(self) -> bool:
        state = self.optimizer.state
        groups = self.optimizer.param_groups
        return all(state.get(param) for group in groups for param in group["params"] if param.requires_grad)

    def names(self, param: nn.Parameter, number: int) -> tuple[str, ...]:
        """Names of a parameter's tensors. The rest of its state is constant, and is compared in each step."""
        own = self.optimizer.state.get(param, {})
        names = tuple((name, None if isinstance(value, Tensor) else value) for name, value in own.items())
        if self._names.setdefault(param, names) != names:
            raise MissingState
        return tuple(name for name, value in names if isinstance(own[name], Tensor))

    def append(self, graph: Graph, params: Owned, inputs: Sequence[Node], found: Node | None) -> None:
        real = [param for param, *_ in params]
        _check_apart([*real, *State(self, real).tensors()])
        nodes = [*(node for _, node, _ in params), *(grad for *_, grad in params)]
        nodes += [*inputs, *([found] if found else [])]
        examples = [node.meta["val"] for node in nodes]
        traced = self._trace(real, examples, bool(found))
        if not type(self.optimizer).__module__.startswith("torch.optim"):
            # Another trace finds what depends on Python's state, such as counters and random numbers.
            if (
                self._trace(real, examples, bool(found)).graph.python_code("self").src
                != traced.graph.python_code("self").src
            ):
                raise Untraceable(f"{type(self.optimizer).__name__}.step() differs from call to call")
        _inline(traced, graph, nodes, slice(len(real), 2 * len(real)))

    def _trace(self, params: list[nn.Parameter], examples: list[Tensor], is_scaled: bool) -> GraphModule:
        """The graph of one step() for parameters, gradients, learning rates and state, which it writes in place."""

        def update(*flat):
            count = len(params)
            with torch.no_grad(), _SingleTensors():
                found = flat[-1] if is_scaled else None
                self._step(params, flat[:count], flat[count : 2 * count], flat[2 * count :], found)

        try:
            with detect_fake_mode(examples), torch.compiler._compile_session_context():
                traced = make_fx(torch.func.functionalize(update), decompositions())(*examples)
        except (MissingState, Untraceable):
            raise
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            raise Untraceable(
                f"{type(self.optimizer).__name__}.step() cannot be traced ({type(error).__name__}: {first})"
            ) from error
        if traced.graph.find_nodes(op="get_attr"):
            raise Untraceable(f"{type(self.optimizer).__name__}.step() makes tensors of Python's numbers")
        _drop_copies(traced.graph)
        return traced

    def _step(
        self, params: list[nn.Parameter], values: Sequence, grads: Sequence, rest: Sequence, found: Tensor | None
    ) -> None:
        """Run step() on copies of parameters and state, and copy back what it leaves."""
        optimizer = self.optimizer
        groups, group_of = optimizer.param_groups, self.group_of()
        rates, tensors = rest[: len(groups)], iter(rest[len(groups) :])
        copies = {param: value.clone() for param, value in zip(params, values, strict=True)}
        grad_of = dict(zip(params, grads, strict=True))
        state, back = defaultdict(dict), list(zip(values, copies.values(), strict=True))
        before: dict[Tensor, dict[str, Tensor]] = {}
        for param, grad in grad_of.items():
            copy = copies[param]
            copy.grad = grad.clone()
            before[copy] = {name: next(tensors) for name in self.names(param, group_of[param])}
            own = {name: _copied(value, copy) for name, value in before[copy].items()}
            state[copy] = {**optimizer.state.get(param, {}), **own}
        new = [
            {**group, **{name: value for name, value in _TRACED.items() if name in group}}
            | {"params": [copies[param] for param in group["params"] if param in copies]}
            | ({"lr": rate} if "lr" in group else {})
            for group, rate in zip(groups, rates, strict=True)
        ]
        real = optimizer.state
        step: Any = type(optimizer).step
        step = step.__wrapped__ if getattr(step, "hooked", False) else step  # without the profiler's range
        optimizer.state, optimizer.param_groups = state, new
        attributes, frozen = vars(optimizer).copy(), _settings(optimizer, new)
        try:
            step(optimizer)
            changed, now = optimizer.state, _settings(optimizer, new)
        finally:
            vars(optimizer).clear()
            vars(optimizer).update(attributes)
            optimizer.state, optimizer.param_groups = real, groups
        name = type(optimizer).__name__
        if now != frozen:
            raise Untraceable(f"{name}.step() changes settings or attributes of the optimizer")
        for param, copy in copies.items():
            if copy.grad is not None:
                back.append((grad_of[param], copy.grad))
            own, constants = changed[copy], real.get(param, {})
            if own.keys() != constants.keys():
                raise MissingState
            for key, value in own.items():
                old = before[copy].get(key)
                if old is None:
                    if _frozen(value) != _frozen(constants[key]):
                        raise Untraceable(f"{name}.step() keeps {key!r} outside of tensors")
                elif not isinstance(value, Tensor) or value.shape != old.shape:
                    raise Untraceable(f"{name}.step() changes the size of {key!r}")
                else:
                    back.append((old, value))
        for old, value in back:
            new = value.to(old.dtype)
            old.copy_(new if found is None else torch.where(found > 0, old, new))


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
            args = (*args[:-1], args[-1].to(args[0].dtype))
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


def _copied(value: Tensor, param: Tensor) -> Tensor:
    """A copy of a tensor of the state. Counters and factors of parameters in fp64 are fp64, as the numbers of Python
    that PyTorch computes of them."""
    is_narrow = not value.dim() and value.is_floating_point() and value.dtype != param.dtype
    return value.double() if is_narrow and param.dtype == torch.float64 else value.clone()


def _settings(optimizer: Optimizer, groups: list[dict]) -> Any:
    own = {name: value for name, value in vars(optimizer).items() if name not in ("state", "param_groups")}
    return _frozen([groups, own])


def _frozen(value: Any) -> Any:
    """A copy to compare: tensors by identity."""
    if isinstance(value, Tensor):
        return id(value)
    if isinstance(value, dict):
        return {key: _frozen(own) for key, own in value.items()}
    return [_frozen(own) for own in value] if isinstance(value, (list, tuple)) else value


def _inline(traced: GraphModule, graph: Graph, nodes: list[Node], grads: slice) -> None:
    """Add a traced update at the end of a graph.

    It comes after all else: no kernel computes a gradient or a result, and overwrites a parameter. So an exception
    before the update leaves all as it was.

    Args:
        nodes: the update's inputs in the graph.
        grads: those that are gradients.
    """
    output = graph.output_node()
    early: tuple[list[Node], list[Node]] = [], []  # where counters and the like go, which follow from no gradient
    with graph.inserting_before(output):
        results = [node for node in output.all_input_nodes if isinstance(node.meta.get("val"), Tensor)]
        first = _after(graph, nodes[grads.start], [*nodes[grads], *results])
        late = [first, *(_after(graph, node, [first]) for node in nodes[grads][1:])]
        given, changed = dict(zip(late, nodes[grads], strict=True)), {}
        inputs = [*nodes[: grads.start], *late, *nodes[grads.stop :]]
        known, follows = dict(zip(traced.graph.find_nodes(op="placeholder"), inputs, strict=True)), set(late)
        for node in traced.graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is aten.copy_.default:
                target, source = (known[argument] for argument in node.args[:2])
                if target in given:
                    changed[given[target]] = source
                    continue
                if source not in follows:
                    early[0].append(target)
                    early[1].append(source)
                    continue
            known[node] = copy = graph.node_copy(node, known.__getitem__)
            if not follows.isdisjoint(copy.all_input_nodes):
                follows.add(copy)
        if early[0]:
            graph.call_function(aten._foreach_copy_.default, early)
    output.args = torch.fx.map_arg(output.args, lambda node: changed.get(node, node))


def _after(graph: Graph, node: Node, before: list[Node]) -> Node:
    late = graph.call_function(after, (node, before))
    late.meta["val"] = node.meta["val"]
    return late


def _drop_copies(graph: Graph) -> None:
    """Drop the optimizer's copies: the graph writes inputs at its end only."""
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


def _check_apart(tensors: Sequence[Tensor]) -> None:
    """Raise Untraceable if tensors share memory."""
    ranges = sorted((tensor.data_ptr(), _end(tensor)) for tensor in tensors if tensor.numel())
    if any(one[1] > other[0] for one, other in itertools.pairwise(ranges)):
        raise Untraceable("parameters or tensors of their state share memory")


def _end(tensor: Tensor) -> int:
    places = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (places + 1) * tensor.itemsize
