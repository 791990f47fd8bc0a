"""The updates for which PyTorch has fused operators: one for all tensors of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from ..runtime.dtypes import NARROW
from .update import Owned, Update

aten = torch.ops.aten


def _count(graph: Graph, steps: list, options: dict) -> None:
    graph.call_function(aten._foreach_add_.Scalar, (steps, 1))
    if found := options.get("found_inf"):
        graph.call_function(aten._foreach_sub_.List, (steps, [found] * len(steps)))


def _adam(graph: Graph, group: dict, params: list, grads: list, states: dict[str, list], options: dict) -> None:
    decoupled = group.get("decoupled_weight_decay", False)
    operator = aten._fused_adamw_ if decoupled else aten._fused_adam_
    beta1, beta2 = map(float, group["betas"])
    options |= {name: group[name] for name in ("weight_decay", "eps", "amsgrad", "maximize")}
    options |= {"beta1": beta1, "beta2": beta2}
    steps, largest = states["step"], states.get("max_exp_avg_sq", [])
    _count(graph, steps, options)
    tensors = params, grads, states["exp_avg"], states["exp_avg_sq"], largest, steps
    graph.call_function(operator.tensor_lr, tensors, options)


def _sgd(graph: Graph, group: dict, params: list, grads: list, states: dict[str, list], options: dict) -> None:
    options |= {name: group[name] for name in ("weight_decay", "momentum", "dampening", "nesterov", "maximize")}
    tensors = params, grads, states.get("momentum_buffer", [])
    graph.call_function(aten._fused_sgd_.tensor_lr, tensors, options | {"is_first_step": False})


def _adagrad(graph: Graph, group: dict, params: list, grads: list, states: dict[str, list], options: dict) -> None:
    options |= {name: group[name] for name in ("lr_decay", "weight_decay", "eps", "maximize")}
    _count(graph, states["step"], options)
    tensors = params, grads, states["sum"], states["step"]
    graph.call_function(aten._fused_adagrad_.tensor_lr, tensors, options)


_UPDATES: dict[type, Callable] = {Adam: _adam, AdamW: _adam, SGD: _sgd, Adagrad: _adagrad}


def is_fused(optimizer: Optimizer) -> bool:
    """True if PyTorch has a fused operator for the optimizer's update that reads its learning rate."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if type(optimizer) not in _UPDATES or not all(map(_is_dense, params)):
        return False
    if type(optimizer) is SGD and any(param.is_cpu and param.dtype in NARROW for param in params):
        return False  # PyTorch's (2.11 to 2.13) leaves all but the last of their elements as they are
    params = [param for param in params if param.is_cuda]
    return not params or (type(optimizer) is not Adagrad and all(param.dtype != torch.float64 for param in params))


def _is_dense(param: Tensor) -> bool:
    """True if the parameter fills its memory, all of which fused operators update."""
    last = sum((size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True))
    return not param.numel() or last + 1 == param.numel()


class Fused(Update):
    """The update by one fused operator for all tensors of a group, a device and a data type."""

    def rate_dtype(self, param: nn.Parameter) -> torch.dtype:
        return torch.float64 if param.is_cpu else torch.float32  # what the operators read

    def names(self, param: nn.Parameter, number: int) -> Sequence[str]:
        kind, group = type(self.optimizer), self.optimizer.param_groups[number]
        if kind is SGD:
            return ("momentum_buffer",) if group["momentum"] else ()
        if kind is Adagrad:
            return "step", "sum"
        return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def has_state(self) -> bool:
        state = self.optimizer.state
        return all(
            isinstance(own.get(name), Tensor) if own else self._has_first(number)
            for number, group in enumerate(self.optimizer.param_groups)
            for param in group["params"]
            if param.requires_grad
            for own in [state.get(param, {})]
            for name in self.names(param, number)
        )

    def state_of(self, param: nn.Parameter, number: int) -> dict[str, Any]:
        own, names = super().state_of(param, number), self.names(param, number)
        if names and not own and self._has_first(number):
            own = self.optimizer.state[param]
            value = self.optimizer.defaults.get("initial_accumulator_value", 0.0)  # Adagrad's sum of squares
            for name in names:  # the counter is as of PyTorch's fused optimizers
                is_count = name == "step"
                own[name] = param.new_zeros((), dtype=torch.float32) if is_count else torch.full_like(param, value)
        return own

    def _has_first(self, number: int) -> bool:
        """True if the first update is that of state without a history. SGD's buffer begins as the gradient, to which
        zeros lead unless there is dampening."""
        return type(self.optimizer) is not SGD or not self.optimizer.param_groups[number]["dampening"]

    def append(self, graph: Graph, params: Owned, inputs: Sequence[Node], found: Node | None) -> None:
        groups, group_of = self.optimizer.param_groups, self.group_of()
        rates, rest = inputs[: len(groups)], iter(inputs[len(groups) :])
        packs: dict[tuple, tuple[list, list, dict[str, list]]] = {}
        for param, node, grad in params:
            number = group_of[param]
            pack = packs.setdefault((number, param.device, param.dtype), ([], [], {}))
            pack[0].append(node)
            pack[1].append(grad)
            for name in self.names(param, number):
                pack[2].setdefault(name, []).append(next(rest))
        with graph.inserting_before(graph.output_node()):
            for (number, _, _), (nodes, grads, states) in packs.items():
                options = {"lr": rates[number]} | ({"found_inf": found} if found else {})
                _UPDATES[type(self.optimizer)](graph, groups[number], nodes, grads, states, options)
