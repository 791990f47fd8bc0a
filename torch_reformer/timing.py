"""Timing on noisy machines: calls are timed in turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    before: Callable[[str], object] = lambda name: None,
    seconds: float = 0.15,
    least: int = 5,
    most: int = 50,
) -> dict[str, list[float]]:
    """Times every call in turns, round after round.

    Args:
        calls: what to time, by name.
        before: called with the name, untimed, before its turn in each round.
        seconds: goes on for about so long in total ...
        least, most: ... but at least and at most so many rounds.

    Returns:
        for each name its times in microseconds, one a round, in order.

    A round runs each call twice and times the second, so that every call finds in the caches what its own first run
    left there and not what its neighbour did.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for round in range(most):
        if round >= least and time.perf_counter() > end:
            break
        for name, call in calls.items():
            before(name)
            call()
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e6)
    return times


def percentiles(times: list[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile."""
    cuts = statistics.quantiles(times, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]
