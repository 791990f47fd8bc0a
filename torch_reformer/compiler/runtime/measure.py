"""How long each kernel and call of a plan takes, measured in its place among the others."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from ...runtime.plan import between_steps
from .executable import Executable

_RUNS = 5
# Cycles of a GPU, for each step: the host has launched all that is measured before the first kernel begins.
_HEAD_START = 200_000

_library = torch.library.Library("reformer", "FRAGMENT")
_library.define("_mark() -> ()")
_marks: list[Any] = []  # of the run that is measured


class _Time:
    """What a CUDA event is, of a CPU."""

    def __init__(self):
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: _Time) -> float:
        return (end.seconds - self.seconds) * 1e3


def _mark() -> None:
    if _marks[0] is None:
        _marks.append(_Time())
        return
    _marks.append(torch.cuda.Event(enable_timing=True))
    _marks[-1].record(_marks[0])


_library.impl("_mark", _mark, "CompositeExplicitAutograd")


def measure(executable: Executable, args: list) -> tuple[dict[int, float], list]:
    """Runs it some times. Gives the microseconds of each of its groups (fusion/greedy.py), the median, and its results.

    The times are those between two events on the stream, which a GPU records in about a microsecond."""
    steps = executable.emitted.steps
    # Only where groups begin and end: a mark after each view of a group of many would count as the group's time.
    places = sorted({place for each in steps.values() for place in (each.start, each.stop)})
    marked = executable.with_plan(between_steps(executable.plan, torch.ops.reformer._mark.default, places))
    gpus = [each.device for each in args if isinstance(each, Tensor) and each.is_cuda]
    stream = torch.cuda.current_stream(gpus[0]) if gpus else None
    found: dict[int, list[float]] = {number: [] for number in steps}
    for _ in range(_RUNS):
        _marks[:] = [stream]
        if stream is not None:
            torch.cuda.synchronize(stream.device)
            torch.cuda._sleep(_HEAD_START * len(executable.plan.steps))
        results = marked(list(args))
        if stream is not None:
            torch.cuda.synchronize(stream.device)
        marks = dict(zip(places, _marks[1:], strict=True))
        for number, each in steps.items():
            found[number].append(marks[each.start].elapsed_time(marks[each.stop]) * 1e3)
    _marks.clear()
    return {number: statistics.median(times) for number, times in found.items()}, results
