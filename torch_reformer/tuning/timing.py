"""Timing on noisy machines: calls are interleaved, so that disturbances affect all of them."""

from __future__ import annotations

import functools
import resource
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Stopwatch = Callable[[], float]  # runs a call and returns its time in microseconds

# Time that the system gives to another program when it preempts this one, in microseconds; and the time for which a run
# that lost more than a tenth of its duration to preemption is repeated.
TIME_SLICE_US, TRY_AGAIN_SECONDS = 10_000, 0.2

# Launches of a call per CUDA graph. A call that takes longer than SHORT_US gets as many launches as fit in GRAPH_US
# microseconds.
MOST_LAUNCHES, SHORT_US, GRAPH_US = 20, 200, 2000


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    before: Callable[[str], object] = lambda name: None,
    seconds: float = 0.15,
    least: int = 5,
    most: int = 50,
    device: torch.device | str = "cpu",
) -> dict[str, list[float]]:
    """Time every call in turn, round after round.

    Args:
        calls: the calls by name.
        before: called with the name, untimed, before the call's turn (on a GPU: before it is captured).
        seconds: the approximate total duration ...
        least, most: ... within these limits on the number of rounds.
        device: the device on which the calls compute.

    Returns:
        for each name its times in microseconds, one per round, in order.
    """
    return in_turns(stopwatches(calls, before, device), seconds, least, most)


def stopwatches(
    calls: Mapping[str, Callable[[], object]],
    before: Callable[[str], object] = lambda name: None,
    device: torch.device | str = "cpu",
) -> dict[str, Stopwatch]:
    """Stopwatch for each call of :func:`interleaved`.

    On a CPU a stopwatch runs the call twice and times the second run, so that the caches hold what the call's own first
    run left there, not what another call did. It repeats this if other programs disturbed the run; if they always do,
    the time is a :class:`Disturbed` one. On a GPU each call is captured into a CUDA graph with several launches, and
    the second of two replays is timed: the result is the GPU's time per call, with everything that fits still in the
    second-level cache. The second replay is submitted while the first runs, so the GPU does not wait.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return {name: _on_cpu(call, functools.partial(before, name)) for name, call in calls.items()}
    return _on_gpu(calls, before, device)


def in_turns(
    stopwatches: Mapping[str, Stopwatch], seconds: float, least: int, most: int, settled: float | None = None
) -> dict[str, list[float]]:
    """Times as from :func:`interleaved`, but without further rounds after the least number once every median is known
    to within the share `settled`."""
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
    """Microseconds of a run during which other programs used the CPU, and which therefore say almost nothing about the
    call."""


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
    """Number of times that the system preempted a thread of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Stream for captures, since the default stream can't be captured. All calls share one, because memory allocated by
    a stream can be reused by that stream only."""
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
        # Graphs that never run at the same time may share their memory. Allocating it takes longer than capturing.
        pool = graph.pool()
        result[name] = functools.partial(_replayed, graph, launches, stream)
    return result


def _captured(call: Callable[[], object], pool) -> tuple[torch.cuda.CUDAGraph, int]:
    """CUDA graph with several launches of the call, and the number of launches."""
    call()  # libraries choose and load their kernels now, which is forbidden during capture
    # On an idle GPU the time of a short call is the CPU's launch time, which may be anything below SHORT_US. With fewer
    # launches per graph, the graph's own cost would count as the call's time.
    estimate = min(_elapsed_us(call) for _ in range(3))
    launches = MOST_LAUNCHES if estimate < SHORT_US else min(max(round(GRAPH_US / estimate), 1), MOST_LAUNCHES)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(pool=pool)  # torch.cuda.graph() would collect garbage each time
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
    """Microseconds that the current stream spends on `work`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def percentiles(times: list[float]) -> tuple[float, float, float]:
    """20th, 50th and 80th percentile; all equal for a single time."""
    if len(times) == 1:
        return times[0], times[0], times[0]
    cuts = statistics.quantiles(times, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]
