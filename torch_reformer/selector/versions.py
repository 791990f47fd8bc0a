"""Databases that an earlier version of `collect` wrote, with other solvers than today's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..runtime import config
from .candidates import candidates
from .timings import Record


def of_this_version(records: Sequence[Record], device: str) -> tuple[list[Record], list[str]]:
    """Records without solvers that no longer exist, and warnings for the user. Databases of another library's kernels,
    such as MIOpen's, stay as they are.

    A solver that is newer than the records stays unknown for them, since nothing says how fast it is there.
    """
    known = set(config.solvers())
    if not any("aten" in record.times for record in records):  # `collect` times this solver for every problem
        return list(records), []
    gone, missing = Counter(), Counter()
    used = []
    for record in records:
        gone.update(record.times.keys() - known)
        used.append(record._replace(timings=tuple(timing for timing in record.timings if timing.solver in known)))
        missing.update(_applicable(record, device) - record.times.keys())
    warnings = []
    if gone:
        warnings.append(f"no solvers of this version: {_named(gone)}, of which {gone.total():,} timings are left out")
    if missing:
        warnings.append(
            f"not timed for up to {max(missing.values()):,} records that they apply to: {_named(missing)}; `collect` "
            "into the same database measures those anew"
        )
    return used, warnings


def _applicable(record: Record, device: str) -> set[str]:
    try:
        problem = record.problem
    except ValueError:  # an impossible problem
        return set()
    return {candidate.name for candidate in candidates(problem, device, record.epilogue) if candidate.reason is None}


def _named(solvers: Counter[str]) -> str:
    names = sorted(solvers)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
