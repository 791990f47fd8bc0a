"""Plans of a training step that are only looked at: ``python -m torch_reformer plan``."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from .averaging import Average
from .micro_batches import parts
from .scaling import Scaling
from .swapping import places_of, swapped
from .traced import TRACED
from .tracing import compiling
from .update import Untraceable

if TYPE_CHECKING:
    from .step import TrainingStep


def record(step: TrainingStep, batch: tuple, compiled: Callable, replace: Callable[[Tensor], Tensor]) -> list:
    """Plan a step for other tensors, and run it, unless they are fake, by what `compiled` gives for the graph.

    The step's own tensors stay in their places.

    Args:
        compiled: called as compiled(graph, passes); appends to `passes`.
        replace: gives the tensor to use instead of one of the batch, the model or the optimizer.

    Returns:
        `passes`: of a micro-batch before the last, if there is one, and of the last with the update.
    """
    with _on_other_tensors(step, replace) as other, torch.enable_grad():
        batch = tree_map_only(Tensor, replace, batch)
        while True:
            passes: list = []
            other._compile = lambda module, passes=passes: _boxed(compiled(module, passes))
            other._prepare()
            try:
                if other._scaling:
                    other._scaling.tensors(next(other._trained()).device)
                if other._update and not other._update.has_state():
                    _make_state(other.optimizer)
                *earlier, last = parts(batch, other._accumulate)
                for part in earlier[:1]:  # all are alike
                    _run(other._earlier, part)
                _run(other._last, last)
                return passes
            except Exception as error:
                reason = other.reason_to_begin_anew(error)
                if not isinstance(reason, Untraceable):  # which leaves the update, or the average, out of the plan
                    raise


class _NotRun(Exception):
    """The tensors are fake, for which some operators have no results."""


def _run(function: Callable, part: tuple) -> None:
    with contextlib.suppress(_NotRun):
        function(*part)


def _boxed(run: Callable) -> Callable[[list], list]:
    def boxed(args: list) -> list:
        if any(isinstance(value, FakeTensor) for value in args):
            raise _NotRun
        return run(*args)

    return boxed


@contextlib.contextmanager
def _on_other_tensors(step: TrainingStep, replace: Callable[[Tensor], Tensor]) -> Iterator[TrainingStep]:
    """A copy of the step, whose model has other tensors."""
    modules = [step.model, *([step.ema] if step.ema else [])]
    places = places_of(modules)
    tensors = [value for _, _, value in places if isinstance(value, Tensor)]
    tensors += [param for group in step.optimizer.param_groups for param in group["params"]]
    new = {tensor: _replaced(tensor, replace) for tensor in dict.fromkeys(tensors)}
    other = copy.copy(step)
    other.reports, other._settings, other._mode = [], None, None
    other.optimizer = _copied(step.optimizer)
    other.optimizer.param_groups = [
        {**group, "params": [new[param] for param in group["params"]]} for group in step.optimizer.param_groups
    ]
    states = step.optimizer.state.items()
    state = {new.get(param, param): tree_map_only(Tensor, replace, dict(own)) for param, own in states}
    other.optimizer.state = defaultdict(dict, state)
    if step._scaling:
        scaler: Any = _copied(step._scaling.scaler)
        scaler._scale, scaler._growth_tracker = tree_map_only(Tensor, replace, (scaler._scale, scaler._growth_tracker))
        other._scaling = Scaling(scaler)
    with swapped(places, new):
        if step._average:
            other._average = Average(step._average.averaged, step.model)
        yield other


def _replaced(tensor: Tensor, replace: Callable[[Tensor], Tensor]) -> Tensor:
    return nn.Parameter(replace(tensor), tensor.requires_grad) if isinstance(tensor, nn.Parameter) else replace(tensor)


def _copied(value: Any) -> Any:
    """A shallow copy, also of hooks, which an optimizer's own copies lack."""
    new = object.__new__(type(value))
    vars(new).update(vars(value))
    return new


def _make_state(optimizer: Optimizer) -> None:
    """Let the optimizer make its state, for gradients of zero.

    Raises:
        Untraceable: its step() fails.
    """
    groups = optimizer.param_groups
    for group in groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param) if param.requires_grad else None
    optimizer.param_groups = [group | {name: TRACED[name] for name in TRACED if name in group} for group in groups]
    try:
        with torch.no_grad(), compiling():
            optimizer.step()
    except Exception as error:
        raise Untraceable(f"{type(optimizer).__name__}.step() fails ({type(error).__name__}: {error})") from error
    finally:
        optimizer.param_groups = groups
        for group in groups:
            for param in group["params"]:
                param.grad = None
