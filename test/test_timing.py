"""Timing of calls, and its duration."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch

from torch_reformer.tuning import timing
from torch_reformer.tuning.timing import in_turns, interleaved, stopwatches, undisturbed


def test_calls_take_turns(monkeypatch):
    monkeypatch.setattr(timing.resource, "getrusage", lambda who: SimpleNamespace(ru_nivcsw=0))  # a quiet machine
    turns = []
    times = interleaved({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, seconds=0, least=2, most=9)
    assert "".join(turns) == "aabb" * 2  # the second of two runs is timed
    assert [len(us) for us in times.values()] == [2, 2]


@pytest.mark.parametrize(("jump", "rounds"), [(0.0, 4), (0.5, 40)])
def test_no_more_rounds_than_it_takes_to_settle(jump, rounds):
    steady, other = itertools.repeat(10.0), itertools.cycle([10.0, 10.0 + jump])
    watches = {"steady": lambda: next(steady), "other": lambda: next(other)}
    times = in_turns(watches, seconds=60, least=4, most=40, settled=0.005)
    assert {len(us) for us in times.values()} == {rounds}


def preempted(monkeypatch, losses):
    """A clock that advances by 10 us per run, and by a time slice more in the runs of `losses` (1, 2, ...).

    In these runs the system takes a CPU from this process.
    """
    clock = SimpleNamespace(runs=0, us=0.0, switches=0)

    def call():
        clock.runs += 1
        lost = clock.runs in losses
        clock.us += 10 + 4000 * lost
        clock.switches += lost

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.us / 1e6)
    monkeypatch.setattr(timing.resource, "getrusage", lambda who: SimpleNamespace(ru_nivcsw=clock.switches))
    return call, clock


@pytest.mark.parametrize("losses, runs", [([], 2), ([1], 2), ([2], 4), ([2, 4, 6], 8)])
def test_a_run_without_the_cpu_is_repeated(monkeypatch, losses, runs):
    call, clock = preempted(monkeypatch, losses)
    us = stopwatches({"call": call})["call"]()
    assert us == pytest.approx(10) and undisturbed([us]) == [us] and clock.runs == runs


def test_it_is_not_repeated_for_ever(monkeypatch):
    call, clock = preempted(monkeypatch, range(1, 10**6))
    us = stopwatches({"call": call})["call"]()
    assert us == pytest.approx(4010) and not undisturbed([us])
    assert clock.us / 1e6 < timing.TRY_AGAIN_SECONDS + 0.1


def test_what_a_long_run_loses_is_little(monkeypatch):
    clock = SimpleNamespace(us=0.0, switches=0)

    def call():
        clock.us, clock.switches = clock.us + 2e6, clock.switches + 3

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.us / 1e6)
    monkeypatch.setattr(timing.resource, "getrusage", lambda who: SimpleNamespace(ru_nivcsw=clock.switches))
    us = stopwatches({"call": call})["call"]()
    assert undisturbed([us]) and clock.us == 4e6


class Gpu:
    """Stands in for torch.cuda: a clock that advances by what runs."""

    def __init__(self, monkeypatch):
        self.us, self.captured, self.pools = 0.0, None, []
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.us = gpu.us

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.us - self.us) / 1e3

        class CUDAGraph:
            def capture_begin(self, pool):
                gpu.pools.append(pool)
                gpu.captured = 0.0

            def capture_end(self):
                self.us, gpu.captured = gpu.captured, None

            def pool(self):
                return len(gpu.pools)

            def replay(self):
                gpu.us += self.us

        class Stream:
            def __init__(self, device):
                self.device = device

            def wait_stream(self, other):
                pass

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def run(self, us):
        if self.captured is None:
            self.us += us
        else:
            self.captured += us


def test_graphs_are_as_long_as_can_be_timed(monkeypatch):
    gpu, order = Gpu(monkeypatch), []
    lengths = {"short": 2.0, "medium": 250.0, "long": 3000.0}

    def call(name):
        """A call that waits for the CPU if it runs outside of a graph, longer in its first runs."""
        waits = itertools.chain([5000.0, 900.0], itertools.repeat(90.0))
        return lambda: gpu.run(lengths[name] if gpu.captured is not None else max(lengths[name], next(waits)))

    calls = {name: call(name) for name in lengths}
    watches = stopwatches(calls, order.append, "cuda:7")
    assert order == list(calls) and gpu.pools == [None, 1, 2]  # each captured in the memory pool of its predecessors
    for name, us, launches in ("short", 2.0, 20), ("medium", 250.0, 8), ("long", 3000.0, 1):
        before = gpu.us
        assert watches[name]() == pytest.approx(us)
        assert gpu.us - before == pytest.approx(2 * launches * us)
