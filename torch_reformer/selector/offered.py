"""Filter of timing records: leaves out solvers that are not candidates here, such as those of MIOpen whose conditions
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
    """Names of the solvers that can compute the problem on a GPU of this architecture, which need not be present."""
    return {candidate.name for candidate in candidates(problem, architecture) if candidate.reason is None}


def of_offered(records: Iterable[Record], architecture: str) -> tuple[list[Record], Counter[str]]:
    """Records with the offered solvers only, and the number of records left out, by reason."""
    remaining, left_out = [], Counter()
    for record in records:
        if why := useless(record):
            left_out[why] += 1
            continue
        names = offered(record.problem, architecture)
        timings = tuple(timing for timing in record.timings if timing.solver in names and timing.ms > 0)
        if timings:
            remaining.append(record._replace(timings=timings))
        else:
            left_out[NONE_OFFERED] += 1
    return remaining, left_out


def mask(problems: Sequence[ConvProblem], names: Sequence[str], architecture: str) -> Tensor:
    """Boolean ``[problem, name]``: True if the solver of that name is offered."""
    result = torch.zeros(len(problems), len(names), dtype=torch.bool)
    for row, problem in enumerate(problems):
        allowed = offered(problem, architecture)
        result[row] = torch.tensor([name in allowed for name in names])
    return result
