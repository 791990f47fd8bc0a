"""An optimizer's update at the end of a plan: its tensors, which the plan takes as inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.optim import Optimizer


class MissingState(Exception):
    """The optimizer has not made a parameter's state yet, or has made other state: its own step() does."""


class Untraceable(Exception):
    """No plan has the optimizer's step(), for a reason that is the end of a sentence."""


def why_apart(optimizer: Optimizer) -> str | None:
    """Why the optimizer's update is no part of a plan, as the end of a sentence; None if it may be."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "the optimizer has hooks of its step"
    if "step" in vars(optimizer) and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return "the optimizer's step() is not that of its class"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return "the optimizer is differentiable"
        for value in group["params"]:
            if not value.is_floating_point() or value.layout != torch.strided:
                return f"a parameter is of the type {value.dtype}, {value.layout}"
        numbers = [value for name, value in group.items() if name not in ("params", "lr")]
        numbers += [beta for beta in group.get("betas") or ()]
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
    """The update of one optimizer. Subclasses say which tensors it has of each parameter, and append its operators."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer
        self._rates: list[Tensor] = []
        self._values: list[float | None] = []
        for group in optimizer.param_groups:
            like = group["params"][0]
            self._rates.append(torch.zeros((), dtype=self.rate_dtype(like), device=like.device))
            self._values.append(None)

    def rate_dtype(self, param: nn.Parameter) -> torch.dtype:
        """The data type of the learning rate of a group that begins with this parameter."""
        raise NotImplementedError

    def names(self, param: nn.Parameter, number: int) -> Sequence[str]:
        """Names of the tensors that the optimizer keeps of a parameter in the group of this number."""
        raise NotImplementedError

    def has_state(self) -> bool:
        """True if no parameter that may get a gradient lacks its state."""
        raise NotImplementedError

    def append(
        self,
        graph: Graph,
        params: Sequence[tuple[nn.Parameter, Node, Node]],
        inputs: Sequence[Node],
        found: Node | None,
    ) -> None:
        """Add the update's operators at the end of a graph.

        Args:
            params: the parameters, each with its node and its gradient's.
            inputs: nodes of `tensors` of these parameters.
            found: 1 if there is no update, since a gradient is not finite; else 0. None: there is always one.

        Raises:
            Untraceable: no plan has the update.
        """
        raise NotImplementedError

    def group_of(self) -> dict[nn.Parameter, int]:
        groups = self.optimizer.param_groups
        return {param: number for number, group in enumerate(groups) for param in group["params"]}

    def tensors(self, params: Iterable[nn.Parameter]) -> list[Tensor]:
        """Learning rates, and the state of parameters.

        Raises:
            MissingState: a parameter has no state, or other state than before.
        """
        self._set_rates()
        group_of, state = self.group_of(), self.optimizer.state
        tensors = list(self._rates)
        for param in params:
            own = state.get(param, {})
            for name in self.names(param, group_of[param]):
                value = own.get(name)
                if not isinstance(value, Tensor):
                    raise MissingState
                if value.device != param.device:  # a counter, which PyTorch keeps on the CPU
                    own[name] = value = value.to(param.device)
                tensors.append(value)
        return tensors

    def _set_rates(self) -> None:
        for number, group in enumerate(self.optimizer.param_groups):
            rate = group.get("lr", 0.0)
            if isinstance(rate, Tensor) and rate.device.type != "cpu":
                self._rates[number].copy_(rate.detach())
                self._values[number] = None
            elif float(rate) != self._values[number]:
                self._values[number] = value = float(rate)
                self._rates[number].fill_(value)
