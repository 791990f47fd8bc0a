"""An optimizer's update by tracing its own step(): element-wise operators, which the compiler fuses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.optim import Optimizer

from .tracing import check_apart, inline, postponed, traced
from .update import MissingState, Owned, State, Untraceable, Update

# Settings under which PyTorch's optimizers compute one tensor after the other, without numbers of the host.
TRACED = {"capturable": True, "foreach": False, "fused": False}


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
        real, nodes, grads = (list(each) for each in zip(*params, strict=True))
        check_apart([*real, *State(self, real).tensors()], "parameters or tensors of their state")

        def update(*flat):
            rest = flat[2 * len(real) :]
            self._step(real, flat[: len(real)], flat[len(real) : 2 * len(real)], rest, rest[-1] if found else None)

        is_own = not type(self.optimizer).__module__.startswith("torch.optim")
        late = postponed(graph, grads)
        nodes = [*nodes, *late, *inputs, *([found] if found else [])]
        module = traced(update, nodes, f"{type(self.optimizer).__name__}.step()", is_checked=is_own)
        changed = inline(module, graph, nodes, late)
        final = {grad: changed[node] for grad, node in zip(grads, late, strict=True) if node in changed}
        output = graph.output_node()
        output.args = torch.fx.map_arg(output.args, lambda node: final.get(node, node))

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
            {**group, **{name: value for name, value in TRACED.items() if name in group}}
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
