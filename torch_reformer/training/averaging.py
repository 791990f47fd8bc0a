"""Averaged weights at the end of a plan: what update_parameters() of a torch.optim.swa_utils.AveragedModel does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode

from ..compiler.ir.fx_utils import is_operator
from .constants import constants_of
from .swapping import places_of, swapped
from .tracing import check_apart, inline, postponed, traced
from .update import Untraceable

aten = torch.ops.aten


class Unaveraged(Untraceable):
    """No plan updates the average, for a reason that is the end of a sentence."""

    of_average = True


class Average:
    """The average of a model's weights, which a plan updates by tracing update_parameters(). The first of its steps,
    which copies weights, is left to PyTorch."""

    def __init__(self, averaged: AveragedModel, model: nn.Module):
        self.averaged, self.model = averaged, model
        self._settings: list[Any] | None = None
        self._count, self._version, self._is_empty = averaged.n_averaged, -1, True

    def why_apart(self) -> str | None:
        """Why the average is not, or no longer, updated in a plan, as the end of a sentence; None if it may be."""
        averaged = self.averaged
        functions = [function for function in (averaged.multi_avg_fn, averaged.avg_fn) if function is not None]
        if "update_parameters" in vars(averaged) or type(averaged).update_parameters is not _UPDATE:
            return "its update_parameters() is not that of AveragedModel"
        try:
            settings = [averaged.use_buffers, functions, [*map(_typed, map(constants_of, functions))]]
        except Untraceable as why:
            return str(why)
        if self._settings is None:
            self._settings = settings
            devices = {tensor.device for tensor in self.weights().tensors if tensor is not averaged.n_averaged}
            if len(devices) != 1:
                return "weights are on several devices"
            (device,) = devices
            if averaged.n_averaged.device != device:
                averaged.n_averaged = averaged.n_averaged.to(device)
        return None if settings == self._settings else "what its function reads changes"

    def weights(self) -> Weights:
        return Weights(self.averaged, self.model)

    def is_empty(self) -> bool:
        """True if the next update copies weights. It looks at values only if others changed the counter."""
        count = self.averaged.n_averaged
        if count is not self._count or count._version != self._version:
            self._is_empty = not count.item()
            self.note()
        return self._is_empty

    def note(self) -> None:
        """Note the counter's version after a plan has changed it."""
        self._count = self.averaged.n_averaged
        self._version = self._count._version

    def append(self, graph: Graph, weights: Weights, nodes: Sequence[Node], trained: Sequence[Node]) -> None:
        """Add the update after an optimizer's at the end of a graph.

        Args:
            nodes: those of the weights' tensors.
            trained: inputs that the optimizer's update writes.

        Raises:
            Unaveraged: no plan has the update.
        """
        count = len(weights.averaged)
        copies: list[Any] = [copy.args for copy in _calls(graph, aten.copy_.default)]
        written = {target: source for target, source, *_ in copies if not _is_updated(target)}
        updates = {written[node] for node in trained if node in written}  # they follow from gradients
        for node in _calls(graph, aten._foreach_copy_.default):
            written.update(zip(*node.args, strict=True))
        current = [written.get(node, node) for node in nodes[count:]]
        postponable = iter(postponed(graph, [node for node in current if node not in updates]))
        late = [node if node in updates else next(postponable) for node in current]
        inputs = [*nodes[:count], *late]
        function: Any = self.averaged.multi_avg_fn or self.averaged.avg_fn
        is_own = function is not None and not (function.__module__ or "").startswith("torch.optim")
        try:
            check_apart(weights.tensors, "weights and their averages")
            module = traced(weights.update, inputs, "update_parameters()", is_checked=is_own)
        except Untraceable as why:
            raise Unaveraged(str(why)) from why
        places = module.graph.find_nodes(op="placeholder")
        changed = {copy.args[0] for copy in _calls(module.graph, aten.copy_.default)}
        if not changed.isdisjoint(places[count:]):
            raise Unaveraged("update_parameters() changes weights of the model")
        own = [place for node, place in zip(nodes[:count], places, strict=False) if node in {*written, *trained}]
        if any(map(_is_read, own)):
            raise Unaveraged("the loss or the optimizer changes averages, too")
        inline(module, graph, inputs, late)


class Weights:
    """Tensors of a model and its average, to find out in each step if they are the same.

    Attributes:
        averaged: the average's.
        tensors: the average's, and then the model's.
    """

    def __init__(self, averaged: AveragedModel, model: nn.Module):
        self._averaged, self._model = averaged, model
        self._places = places_of((averaged, model))
        self._sizes = [(own, len(own)) for own in {id(own): own for own, _, _ in self._places}.values()]
        self.averaged = _tensors(averaged)
        self.tensors = list(dict.fromkeys([*self.averaged, *_tensors(model)]))

    def have_changed(self) -> bool:
        return any(len(own) != size for own, size in self._sizes) or any(
            own.get(name) is not value for own, name, value in self._places
        )

    def update(self, *tensors) -> None:
        """Update the average with other tensors in the place of these."""
        other = dict(zip(self.tensors, tensors, strict=True))
        with _NotEmpty(other[self._averaged.n_averaged]), swapped(self._places, other):
            self._averaged.update_parameters(self._model)


class _NotEmpty(TorchFunctionMode):
    """Answers if the counter is 0: it is greater."""

    def __init__(self, count: Tensor):
        super().__init__()
        self._count = count

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if args and args[0] is self._count and args[1:] == (0,):
            if func.__name__ in ("__eq__", "eq"):
                return False
            if func.__name__ in ("__gt__", "gt"):
                return True
        return func(*args, **(kwargs or {}))


_UPDATE = AveragedModel.update_parameters


def _typed(values) -> list[tuple[type, Any]]:
    return [(type(value), value) for value in values]


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(dict.fromkeys([*module.parameters(), *module.buffers()]))


def _is_read(place: Node) -> bool:
    """True if more than a copy to the input is made."""
    return any(user.target is not aten.copy_.default or user.args[1] is place for user in place.users)


def _is_updated(node: Node) -> bool:
    """True if an operator changes the input in place, as a fused update does. Copies follow the loss's own changes."""
    copies = aten.copy_.default, aten._foreach_copy_.default
    targets = [user.target for user in node.users if is_operator(user)]
    return any(target._schema.is_mutable and target not in copies for target in targets)


def _calls(graph: Graph, target: Callable) -> list[Node]:
    return graph.find_nodes(op="call_function", target=target)
