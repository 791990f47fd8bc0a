"""An optimizer's update at the end of a plan: its tensors, which the plan takes as inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.optim import Optimizer

Owned = Sequence[tuple[nn.Parameter, Node, Node]]  # parameters, each with its node in a graph and its gradient's


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor with the strides of another one, as fused operators expect."""
    if tensor.stride() == other.stride():
        return tensor
    return torch.empty_strided(other.shape, other.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class MissingState(Exception):
    """The optimizer has not made a parameter's state yet, or has made other state: its own step() does."""


class Untraceable(Exception):
    """No plan has the optimizer's step(), for a reason that is the end of a sentence."""

    of_average = False  # whether it is the update of averaged weights that no plan has


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


def trained(optimizer: Optimizer) -> list[Any]:
    """The parameters that the optimizer trains, as numbers to compare."""
    return [[(id(param), param.requires_grad) for param in group["params"]] for group in optimizer.param_groups]


def settings(optimizer: Optimizer) -> list[Any]:
    """All else that a plan of the update has as constants, or that decides about it, without learning rates."""
    changing = "params", "lr", "initial_lr"
    has_hooks = bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
    return [has_hooks, "step" in vars(optimizer)] + [
        [group["params"][0].dtype, *((name, value) for name, value in group.items() if name not in changing)]
        for group in optimizer.param_groups
    ]


class State:
    """The state of some parameters, as a list of tensors that is checked and read in each step."""

    def __init__(self, update: Update, params: Sequence[nn.Parameter]):
        self._update, self._params = update, params
        self._owners: list[tuple[nn.Parameter, dict, int]] = []
        self._places: list[tuple[dict, str]] = []
        self._constants: list[tuple[dict, str, Any]] = []
        self._find()

    def tensors(self) -> list[Tensor]:
        """Learning rates, and the parameters' tensors.

        Raises:
            MissingState: a parameter has no state, or other state than before.
        """
        state = self._update.optimizer.state
        if any(state.get(param, _NONE) is not own or len(own) != count for param, own, count in self._owners):
            self._find()
        if any(own.get(name) != value for own, name, value in self._constants):
            raise MissingState
        try:
            return [*self._update.rates(), *(own[name] for own, name in self._places)]
        except KeyError as error:
            raise MissingState from error

    def _find(self) -> None:
        update, group_of = self._update, self._update.group_of()
        self._owners, self._places, self._constants = [], [], []
        for param in self._params:
            own = update.state_of(param, group_of[param])
            names = update.names(param, group_of[param])
            for name in names:
                value = own.get(name)
                if not isinstance(value, Tensor):
                    raise MissingState
                if value.device != param.device:  # a counter, which PyTorch keeps on the CPU
                    own[name] = value.to(param.device)
                elif value.shape == param.shape:  # a checkpoint, or channels_last since, may give it other strides
                    own[name] = like(value, param)
                self._places.append((own, name))
            self._owners.append((param, own, len(own)))
            if update.has_constants:
                self._constants += [(own, name, value) for name, value in own.items() if name not in names]


_NONE: dict[str, Any] = {}


class Update(ABC):
    """The update of one optimizer. Subclasses say which tensors it has of each parameter, and append its operators."""

    has_constants = False  # whether the rest of a parameter's state must stay as it is

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer
        self._rates: list[Tensor] = []
        self._values: list[float | None] = []
        for group in optimizer.param_groups:
            like = group["params"][0]
            self._rates.append(torch.zeros((), dtype=self.rate_dtype(like), device=like.device))
            self._values.append(None)

    @abstractmethod
    def rate_dtype(self, param: nn.Parameter) -> torch.dtype:
        """The data type of the learning rate of a group that begins with this parameter."""

    @abstractmethod
    def names(self, param: nn.Parameter, number: int) -> Sequence[str]:
        """Names of the tensors that the optimizer keeps of a parameter in the group of this number."""

    @abstractmethod
    def has_state(self) -> bool:
        """True if no parameter that may get a gradient lacks state that only the optimizer's step() makes."""

    def state_of(self, param: nn.Parameter, number: int) -> dict[str, Any]:
        """The state of a parameter in the group of this number, made if that needs no step(); empty if it lacks."""
        return self.optimizer.state.get(param, _NONE)

    @abstractmethod
    def append(self, graph: Graph, params: Owned, inputs: Sequence[Node], found: Node | None) -> None:
        """Add the update's operators at the end of a graph.

        Args:
            params: the parameters, each with its node and its gradient's.
            inputs: nodes of the learning rates and of these parameters' state.
            found: 1 if there is no update, since a gradient is not finite; else 0. None: there is always one.

        Raises:
            Untraceable: no plan has the update.
        """

    def group_of(self) -> dict[nn.Parameter, int]:
        groups = self.optimizer.param_groups
        return {param: number for number, group in enumerate(groups) for param in group["params"]}

    def rates(self) -> list[Tensor]:
        """Learning rates of the groups."""
        for number, group in enumerate(self.optimizer.param_groups):
            rate = group.get("lr", 0.0)
            if isinstance(rate, Tensor) and rate.device.type != "cpu":
                self._rates[number].copy_(rate.detach())
                self._values[number] = None
            elif float(rate) != self._values[number]:
                self._values[number] = value = float(rate)
                self._rates[number].fill_(value)
        return self._rates
