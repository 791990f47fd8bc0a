"""An optimizer's update at the end of a plan, by PyTorch's fused operators: one for all tensors of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

aten = torch.ops.aten


class MissingState(Exception):
    """The optimizer has not made a parameter's state yet: its own step() does."""


def _adam(graph: Graph, group: dict, params: list, grads: list, states: dict[str, list], lr: Node) -> None:
    decoupled = group.get("decoupled_weight_decay", False)
    operator = aten._fused_adamw_ if decoupled else aten._fused_adam_
    beta1, beta2 = map(float, group["betas"])
    options = {name: group[name] for name in ("weight_decay", "eps", "amsgrad", "maximize")}
    options |= {"lr": lr, "beta1": beta1, "beta2": beta2}
    steps, largest = states["step"], states.get("max_exp_avg_sq", [])
    graph.call_function(aten._foreach_add_.Scalar, (steps, 1))
    tensors = params, grads, states["exp_avg"], states["exp_avg_sq"], largest, steps
    graph.call_function(operator.tensor_lr, tensors, options)


def _sgd(graph: Graph, group: dict, params: list, grads: list, states: dict[str, list], lr: Node) -> None:
    options = {name: group[name] for name in ("weight_decay", "momentum", "dampening", "nesterov", "maximize")}
    tensors = params, grads, states.get("momentum_buffer", [])
    graph.call_function(aten._fused_sgd_.tensor_lr, tensors, options | {"lr": lr, "is_first_step": False})


def _adagrad(graph: Graph, group: dict, params: list, grads: list, states: dict[str, list], lr: Node) -> None:
    options = {name: group[name] for name in ("lr_decay", "weight_decay", "eps", "maximize")}
    graph.call_function(aten._foreach_add_.Scalar, (states["step"], 1))
    tensors = params, grads, states["sum"], states["step"]
    graph.call_function(aten._fused_adagrad_.tensor_lr, tensors, options | {"lr": lr})


_UPDATES: dict[type, Callable] = {Adam: _adam, SGD: _sgd, Adagrad: _adagrad}


def _kind(optimizer: Optimizer) -> type:
    return Adam if type(optimizer) is AdamW else type(optimizer)


def _names(kind: type, group: dict) -> tuple[str, ...]:
    """Names of the tensors that the optimizer keeps of each parameter of the group."""
    if kind is SGD:
        return ("momentum_buffer",) if group["momentum"] else ()
    if kind is Adagrad:
        return "sum", "step"
    return ("exp_avg", "exp_avg_sq", "step", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


def why_apart(optimizer: Optimizer) -> str | None:
    """Why the optimizer's update is no part of a plan, as the end of a sentence; None if it is."""
    if (
        _kind(optimizer) not in _UPDATES
        or "step" in type(optimizer).__dict__
        and not type(optimizer).__module__.startswith("torch.optim")
    ):
        return f"no plan has the update of {type(optimizer).__name__}; those of Adam, AdamW, SGD and Adagrad are known"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "the optimizer has hooks of its step"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return "the optimizer is differentiable"
        for value in group["params"]:
            if not value.is_floating_point() or value.layout != torch.strided:
                return f"a parameter is of the type {value.dtype}, {value.layout}"
            if value.is_cuda and (value.dtype == torch.float64 or _kind(optimizer) is Adagrad):
                return (
                    f"on GPUs PyTorch has no fused update with a learning rate in fp64, nor of Adagrad ({value.dtype})"
                )
        numbers = [value for name, value in group.items() if name not in ("params", "lr")]
        numbers += [beta for beta in group.get("betas", ())]
        if any(isinstance(number, Tensor) for number in numbers):
            return "a setting other than the learning rate is a tensor"
    return None


def settings(optimizer: Optimizer) -> list[Any]:
    """All that a plan has as constants: the groups, without their learning rates."""
    changing = "params", "lr", "initial_lr"
    return [
        ([id(param) for param in group["params"] if param.requires_grad],)
        + tuple((name, value) for name, value in group.items() if name not in changing)
        for group in optimizer.param_groups
    ]


class Update:
    """The update of one optimizer: its tensors, which a plan takes as inputs, and its operators."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer, self._kind = optimizer, _kind(optimizer)
        self._rates: list[Tensor] = []
        self._values: list[float | None] = []
        for group in optimizer.param_groups:
            like = group["params"][0]
            dtype = torch.float64 if like.device.type == "cpu" else torch.float32  # what the fused operators read
            self._rates.append(torch.zeros((), dtype=dtype, device=like.device))
            self._values.append(None)

    def has_state(self) -> bool:
        """True if no parameter that may get a gradient lacks its state."""
        state = self.optimizer.state
        return all(
            isinstance(state.get(param, {}).get(name), Tensor)
            for group in self.optimizer.param_groups
            for name in _names(self._kind, group)
            for param in group["params"]
            if param.requires_grad
        )

    def group_of(self) -> dict[nn.Parameter, int]:
        groups = self.optimizer.param_groups
        return {param: number for number, group in enumerate(groups) for param in group["params"]}

    def tensors(self, params: Iterable[nn.Parameter]) -> list[Tensor]:
        """Learning rates, and the state of parameters.

        Raises:
            MissingState: a parameter has no state.
        """
        self._set_rates()
        group_of, groups, state = self.group_of(), self.optimizer.param_groups, self.optimizer.state
        names = [_names(self._kind, group) for group in groups]
        tensors = list(self._rates)
        for param in params:
            own = state.get(param, {})
            for name in names[group_of[param]]:
                value = own.get(name)
                if not isinstance(value, Tensor):
                    raise MissingState
                if value.device != param.device:  # a counter, which PyTorch keeps on the CPU
                    own[name] = value = value.to(param.device)
                tensors.append(value)
        return tensors

    def _set_rates(self) -> None:
        for number, group in enumerate(self.optimizer.param_groups):
            rate = group["lr"]
            if isinstance(rate, Tensor) and rate.device.type != "cpu":
                self._rates[number].copy_(rate.detach())
                self._values[number] = None
            elif float(rate) != self._values[number]:
                self._values[number] = value = float(rate)
                self._rates[number].fill_(value)

    def append(self, graph: Graph, params: Sequence[tuple[nn.Parameter, Node, Node]], inputs: Sequence[Node]) -> None:
        """Add the update's operators at the end of a graph.

        Args:
            params: the parameters, each with its node and its gradient's.
            inputs: nodes of `tensors` of these parameters.
        """
        groups, group_of = self.optimizer.param_groups, self.group_of()
        rates, rest = inputs[: len(groups)], iter(inputs[len(groups) :])
        packs: dict[tuple, tuple[list, list, dict[str, list]]] = {}
        for param, node, grad in params:
            number = group_of[param]
            pack = packs.setdefault((number, param.device, param.dtype), ([], [], {}))
            pack[0].append(node)
            pack[1].append(grad)
            for name in _names(self._kind, groups[number]):
                pack[2].setdefault(name, []).append(next(rest))
        with graph.inserting_before(graph.output_node()):
            for (number, _, _), (nodes, grads, states) in packs.items():
                _UPDATES[self._kind](graph, groups[number], nodes, grads, states, rates[number])
