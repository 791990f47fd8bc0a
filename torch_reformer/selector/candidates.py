"""Candidates for a problem: every solver, with its estimate or the reason why it does not apply."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..problem import ConvProblem
from ..runtime import native
from ..runtime.arguments import shown
from .epilogues import program_of


@dataclass(frozen=True)
class Candidate:
    """Solver's estimate for a problem, or the reason why it does not apply."""

    name: str
    reason: str | None  # reason why it can't be chosen; None if it can
    estimate_us: float  # microseconds by its cost model; 0 if it does not apply or has no cost model
    workspace_bytes: int
    chosen: bool
    # Probability that it is the fastest of the solvers that can be chosen, by the device's selector; None if there is
    # no selector, or the selector does not know this candidate, or the candidate does not apply.
    probability: float | None = None
    condition: str | None = None  # a further condition that can't be checked on this machine; None if there is none


def check_problem(problem: ConvProblem) -> None:
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"the problem must be a ConvProblem, got {shown(problem)}; ConvProblem.parse reads a key")


def candidates(problem: ConvProblem, device: str | None = None, epilogue: str = "") -> list[Candidate]:
    """All solvers that run on the device, in the order in which ties are broken, under the current configuration.

    Args:
        device: for example ``cpu-avx512-2t``; this machine's CPU with torch's number of threads if None.
        epilogue: a program (epilogues.py) that candidates have to run themselves, except for PyTorch's kernel, after
            which it is a kernel of its own.
    """
    check_problem(problem)
    results, chosen = native.candidates(problem.native(), device, program_of(epilogue).code if epilogue else ())
    return [
        Candidate(
            name=candidate.name.decode(),
            reason=candidate.reason.decode() if candidate.reason else None,
            estimate_us=candidate.estimate_us,
            workspace_bytes=candidate.workspace_bytes,
            chosen=candidate.solver == chosen,
            probability=None if math.isnan(candidate.probability) else candidate.probability,
            condition=candidate.condition.decode() if candidate.condition else None,
        )
        for candidate in results
    ]
