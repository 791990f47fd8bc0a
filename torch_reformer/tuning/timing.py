"""Timing on noisy machines: calls are timed in turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import functools
import resource
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Stopwatch = Callable[[], float]  # runs a call and says how many microseconds it took

# What the system gives another program when it takes a CPU from this one, in microseconds; and for how long a run that
# lost more than a tenth of its time so is repeated.
TIME_SLICE_US, TRY_AGAIN_SECONDS = 10_000, 0.2

# Launches of a call in one graph; fewer of what takes longer than so many microseconds: as many as take so many.
MOST_LAUNCHES, SHORT_US, GRAPH_US = 20, 200, 2000


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    before: Callable[[str], object] = lambda name: None,
    seconds: float = 0.15,
    least: int = 5,
    most: int = 50,
    device: torch.device | str = "cpu",
) -> dict[str, list[float]]:
    """Times every call in turns, round after round.

    Args:
        calls: what to time, by name.
        before: called with the name, untimed, before its turn (on a GPU: before it is captured).
        seconds: goes on for about so long in total ...
        least, most: ... but at least and at most so many rounds.
        device: where the calls compute.

    Returns:
        for each name its times in microseconds, one a round, in order.
    """
    return in_turns(stopwatches(calls, before, device), seconds, least, most)


def stopwatches(
    calls: Mapping[str, Callable[[], object]],
    before: Callable[[str], object] = lambda name: None,
    device: torch.device | str = "cpu",
) -> dict[str, Stopwatch]:
    """For each call of :func:`interleaved` what times it.

    On a CPU that runs the call twice and times the second run, so that every call finds in the caches what its own
    first run left there and not what its neighbour did; again if other programs disturbed it, and where they always do,
    the time is a :class:`Disturbed` one. On a GPU each call is captured into a CUDA graph, several times
    one after the other, and of two replays the second is timed: what counts is the GPU's time a call, with all that
    fits still in the second-level cache. The GPU is given the second while it runs the first, and does not wait.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return {name: _on_cpu(call, functools.partial(before, name)) for name, call in calls.items()}
    return _on_gpu(calls, before, device)


def in_turns(
    stopwatches: Mapping[str, Stopwatch], seconds: float, least: int, most: int, settled: float | None = None
) -> dict[str, list[float]]:
    """As :func:`interleaved`; but no more than the least number of rounds once all medians have settled to within such
    a share of themselves."""
    times: dict[str, list[float]] = {name: [] for name in stopwatches}
    end = time.perf_counter() + seconds
    for round in range(most):
        if round >= least and (time.perf_counter() > end or _all_settled(times, settled)):
            break
        for name, microseconds in stopwatches.items():
            times[name].append(microseconds())
    return times


def _all_settled(times: Mapping[str, list[float]], share: float | None) -> bool:
    if share is None or any(len(us) < 2 for us in times.values()):
        return False
    for us in times.values():
        low, median, high = percentiles(us)
        if high - low > share * median * len(us) ** 0.5:
            return False
    return True


class Disturbed(float):
    """Microseconds of a run during which other programs had the CPU: next to nothing is known of the call."""


def undisturbed(times: list[float]) -> list[float]:
    return [us for us in times if not isinstance(us, Disturbed)]


def _on_cpu(call: Callable[[], object], before: Callable[[], object]) -> Stopwatch:
    def microseconds() -> float:
        before()
        end = time.perf_counter() + TRY_AGAIN_SECONDS
        while True:
            call()
            preempted, start = _preemptions(), time.perf_counter()
            call()
            us = (time.perf_counter() - start) * 1e6
            if (_preemptions() - preempted) * TIME_SLICE_US <= us / 10:
                return us
            if time.perf_counter() > end:
                return Disturbed(us)

    return microseconds


def _preemptions() -> int:
    """How often the system took a CPU from a thread of this process that wanted to go on."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The default stream can't be captured. One for all: what a stream has allocated is of use to itself only."""
    return torch.cuda.Stream(device)


def _on_gpu(
    calls: Mapping[str, Callable[[], object]], before: Callable[[str], object], device: torch.device
) -> dict[str, Stopwatch]:
    result: dict[str, Stopwatch] = {}
    stream, pool = _side_stream(device), None
    stream.wait_stream(torch.cuda.current_stream(device))
    for name, call in calls.items():
        before(name)
        with torch.cuda.stream(stream):
            graph, launches = _captured(call, pool)
        # Graphs that never run at the same time may share their memory. To allocate it takes longer than to capture.
        pool = graph.pool()
        result[name] = functools.partial(_replayed, graph, launches, stream)
    return result


def _captured(call: Callable[[], object], pool) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of several launches of the call, and of how many."""
    call()  # libraries choose their kernels and load them, which a capture forbids
    # On an idle GPU a short call takes as long as the CPU does to launch it, any time below SHORT_US. Were a graph made
    # shorter for it, what a graph costs would count as the call's time.
    estimate = min(_elapsed_us(call) for _ in range(3))
    launches = MOST_LAUNCHES if estimate < SHORT_US else min(max(round(GRAPH_US / estimate), 1), MOST_LAUNCHES)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(pool=pool)  # not torch.cuda.graph(), which collects garbage each time
    try:
        for _ in range(launches):
            call()
    finally:
        graph.capture_end()
    return graph, launches


def _replayed(graph: torch.cuda.CUDAGraph, launches: int, stream: torch.cuda.Stream) -> float:
    with torch.cuda.stream(stream):
        graph.replay()
        return _elapsed_us(graph.replay) / launches


def _elapsed_us(work: Callable[[], object]) -> float:
    """The current stream's time for it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def percentiles(times: list[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile, which are all the same of one time."""
    if len(times) == 1:
        return times[0], times[0], times[0]
    cuts = statistics.quantiles(times, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]
