"""Timing on noisy machines: calls are timed in turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

LAUNCHES = 10  # of a call in one graph


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

    On a CPU a round runs each call twice and times the second, so that every call finds in the caches what its own
    first run left there and not what its neighbour did. On a GPU each call is captured into a CUDA graph, `LAUNCHES`
    times one after the other, and a round replays each graph: what counts is the GPU's time a call, with all that fits
    still in the second-level cache.
    """
    timer = _on_cpu if torch.device(device).type == "cpu" else _on_gpu
    timers = {name: timer(call, lambda name=name: before(name)) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for round in range(most):
        if round >= least and time.perf_counter() > end:
            break
        for name, microseconds in timers.items():
            times[name].append(microseconds())
    return times


def _on_cpu(call: Callable[[], object], before: Callable[[], object]) -> Callable[[], float]:
    def microseconds() -> float:
        before()
        call()
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    return microseconds


def _on_gpu(call: Callable[[], object], before: Callable[[], object]) -> Callable[[], float]:
    before()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # not torch.cuda.graph(), which collects garbage each time
        call()  # libraries choose their kernels and load them, which a capture forbids
        torch.cuda.synchronize()
        graph.capture_begin()
        try:
            for _ in range(LAUNCHES):
                call()
        finally:
            graph.capture_end()
    graph.replay()

    def microseconds() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / LAUNCHES

    return microseconds


def percentiles(times: list[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile."""
    cuts = statistics.quantiles(times, n=10, method="inclusive")
    return cuts[1], cuts[4], cuts[7]
