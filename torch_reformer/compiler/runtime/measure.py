"""Measure how long each kernel and call of a plan takes in its place among the others."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ...runtime.plan import between_steps
from .executable import Executable

_RUNS = 5
# Cycles that the GPU waits for each step, so that the host has launched all kernels before the first one begins.
_HEAD_START = 200_000

_library = torch.library.Library("reformer", "FRAGMENT")
_library.define("_mark() -> ()")
_marks: list[Any] = []  # of the run that is measured: its stream (None on a CPU), then its events


class _Time:
    """A CPU's counterpart of a CUDA event."""

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


class _Timed(Interpreter):
    """Notes the microseconds of each call, by the node's name."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        self.times: dict[str, float] = {}

    def run_node(self, node: Node):
        start = _finished()
        result = super().run_node(node)
        if node.op == "call_function":
            self.times[node.name] = (_finished() - start) * 1e6
        return result


def _finished() -> float:
    """Seconds on a clock, once the GPU has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure_calls(module: GraphModule, args: list) -> tuple[dict[str, float], list]:
    """Run a subgraph once by PyTorch's operators.

    Returns:
        the microseconds of each call, by its node's name, and the results.
    """
    timed = _Timed(module)
    results = timed.run(args)
    return timed.times, list(results)


def measure(executable: Executable, args: list) -> tuple[dict[int, float], list]:
    """Run an executable several times. Its arguments stay as they are, but for what the graph changes in place.

    Times are those between two events on the stream, which a GPU records in about a microsecond.

    Returns:
        the median microseconds of each fusion group and extern call, by their numbers (fusion/greedy.py), and the
        executable's results.
    """
    steps = executable.emitted.steps
    # Marks only where groups begin and end: marks after the views within a group would add to the group's time.
    places = sorted({place for group in steps.values() for place in (group.start, group.stop)})
    marked = executable.with_plan(between_steps(executable.plan, torch.ops.reformer._mark.default, places))
    gpus = [arg.device for arg in args if isinstance(arg, Tensor) and arg.is_cuda]
    stream = torch.cuda.current_stream(gpus[0]) if gpus else None
    times: dict[int, list[float]] = {number: [] for number in steps}
    for _ in range(_RUNS):
        _marks[:] = [stream]
        if stream is not None:
            torch.cuda.synchronize(stream.device)
            torch.cuda._sleep(_HEAD_START * len(executable.plan.steps))
        results = marked(list(args))
        if stream is not None:
            torch.cuda.synchronize(stream.device)
        marks = dict(zip(places, _marks[1:], strict=True))
        for number, group in steps.items():
            times[number].append(marks[group.start].elapsed_time(marks[group.stop]) * 1e3)
    _marks.clear()
    return {number: statistics.median(runs) for number, runs in times.items()}, results
