"""Records of timings without the solvers that are not offered as candidates here: of MIOpen's, those whose conditions
MIOpen does not tell (docs/selector.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..problem import ConvProblem
from .candidates import candidates
from .dataset import useless
from .timings import Record

NONE_OFFERED = "of which no solver is offered"


def offered(problem: ConvProblem, architecture: str) -> set[str]:
    """Names of the solvers that may compute the problem on a GPU of the architecture, which need not be there."""
    return {each.name for each in candidates(problem, architecture) if each.reason is None}


def of_offered(records: Iterable[Record], architecture: str) -> tuple[list[Record], Counter[str]]:
    """The records with offered solvers only, and how many were left out, by the reason."""
    found, left_out = [], Counter()
    for record in records:
        if why := useless(record):
            left_out[why] += 1
            continue
        names = offered(record.problem, architecture)
        timings = tuple(timing for timing in record.timings if timing.solver in names and timing.ms > 0)
        if timings:
            found.append(record._replace(timings=timings))
        else:
            left_out[NONE_OFFERED] += 1
    return found, left_out


def mask(problems: Sequence[ConvProblem], names: Sequence[str], architecture: str) -> Tensor:
    """``[problem, name]``: whether the solver of that name is offered."""
    found = torch.zeros(len(problems), len(names), dtype=torch.bool)
    for row, problem in enumerate(problems):
        allowed = offered(problem, architecture)
        found[row] = torch.tensor([name in allowed for name in names])
    return found
