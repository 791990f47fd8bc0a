"""The candidates for a problem: every solver, with its estimate or the reason why it does not apply."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..problem import ConvProblem
from ..runtime import native
from ..runtime.arguments import shown


@dataclass(frozen=True)
class Candidate:
    """A solver's estimate for a problem, or the reason why it does not apply."""

    name: str
    reason: str | None  # why it may not be chosen; None if it may
    estimate_us: float  # microseconds that its cost model expects; 0 if it refused or has none
    workspace_bytes: int
    chosen: bool
    # That it is the fastest of those that may be chosen, as the device's selector thinks; None if there is no selector,
    # or it does not know this candidate, or it refused.
    probability: float | None = None
    condition: str | None = None  # what else has to hold, and is not known on this machine; None if nothing


def check_problem(problem: ConvProblem) -> None:
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"the problem must be a ConvProblem, got {shown(problem)}; ConvProblem.parse reads a key")


def candidates(problem: ConvProblem, device: str | None = None) -> list[Candidate]:
    """All solvers that run on the device, in the order in which ties are broken, under the configuration in force.

    Args:
        device: for example ``cpu-avx512-2t``; this machine's CPU with torch's number of threads if None.
    """
    check_problem(problem)
    found, chosen = native.candidates(problem.native(), device)
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
        for candidate in found
    ]
