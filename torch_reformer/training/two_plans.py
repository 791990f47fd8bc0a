"""Losses compiled by themselves: a plan of the forward and one of the backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..compiler.analysis.report import Report

_numbers = itertools.count()


def with_own_code(function: Callable) -> Callable:
    """The function, which shares no limit on recompilations with others of the same lines."""
    code = function.__code__
    function.__code__ = code.replace(co_name=f"training_{code.co_name}_{next(_numbers)}")
    return function


class TwoPlans:
    """The loss of a training step by two plans, which are made when they are needed.

    Args:
        reports: gets reports of plans for all steps.
    """

    def __init__(self, loss: Callable, mode: str | None, budget: float, reports: list[Report]):
        self._loss, self._mode, self._budget, self._reports = loss, mode, budget, reports
        self._for_all: Callable | None = None
        self._at_first: Callable | None = None

    def for_all(self) -> Callable:
        """The loss for all steps from now on."""
        if self._for_all is None:
            self._for_all = self._compiled(self._mode, self._reports.append)
        return self._for_all

    def at_first(self) -> Callable:
        """The loss for steps before the one plan's: in no CUDA graph, whose memory would stay."""
        if self._at_first is None:
            self._at_first = self._compiled(None, None)
        return self._at_first

    def drop_first(self) -> None:
        """Forget the loss for first steps."""
        self._at_first = None

    def _compiled(self, mode: str | None, report: Callable[[Report], None] | None) -> Callable:
        from ..compiler.backend import reformer  # imports Dynamo, which takes seconds

        loss, options = self._loss, {"memory_budget": self._budget, "report": report}

        def loss_alone(model, *batch):
            return loss(model, *batch)

        def backend(module, inputs):
            return reformer(module, inputs, mode=mode, options=options)

        return torch.compile(with_own_code(loss_alone), backend=backend)
