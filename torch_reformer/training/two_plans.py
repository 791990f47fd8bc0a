"""Losses compiled by themselves: a plan of the forward and one of the backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

_numbers = itertools.count()


def with_own_code(function: Callable) -> Callable:
    """The function, which shares no limit on recompilations with others of the same lines."""
    code = function.__code__
    function.__code__ = code.replace(co_name=f"training_{code.co_name}_{next(_numbers)}")
    return function


def by_two_plans(loss: Callable, mode: str | None, budget: float, report: Callable | None) -> Callable:
    """The loss of a training step, compiled with this mode and memory budget. `report` gets reports of the plans."""
    from ..compiler.backend import reformer  # imports Dynamo, which takes seconds

    options = {"memory_budget": budget, "report": report}

    def loss_alone(model, *batch):
        return loss(model, *batch)

    def backend(module, inputs):
        return reformer(module, inputs, mode=mode, options=options)

    return torch.compile(with_own_code(loss_alone), backend=backend)
