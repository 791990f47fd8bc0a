"""How calls are timed, and for how long."""

import contextlib
import itertools

import pytest
import torch

from torch_reformer.timing import in_turns, interleaved, stopwatches


def test_calls_take_turns():
    turns = []
    times = interleaved({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, seconds=0, least=2, most=9)
    assert "".join(turns) == "aabb" * 2  # of two runs the second is timed
    assert [len(us) for us in times.values()] == [2, 2]


@pytest.mark.parametrize(("jump", "rounds"), [(0.0, 4), (0.5, 40)])
def test_no_more_rounds_than_it_takes_to_settle(jump, rounds):
    steady, other = itertools.repeat(10.0), itertools.cycle([10.0, 10.0 + jump])
    watches = {"steady": lambda: next(steady), "other": lambda: next(other)}
    times = in_turns(watches, seconds=60, least=4, most=40, settled=0.005)
    assert {len(us) for us in times.values()} == {rounds}


class Gpu:
    """Stands in for torch.cuda: a clock that goes on by what is run."""

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
        """Run by itself it waits for the CPU; the first times for more than that."""
        waits = itertools.chain([5000.0, 900.0], itertools.repeat(90.0))
        return lambda: gpu.run(lengths[name] if gpu.captured is not None else max(lengths[name], next(waits)))

    calls = {name: call(name) for name in lengths}
    watches = stopwatches(calls, order.append, "cuda:7")
    assert order == list(calls) and gpu.pools == [None, 1, 2]  # each in the memory of those before it
    for name, us, launches in ("short", 2.0, 20), ("medium", 250.0, 8), ("long", 3000.0, 1):
        before = gpu.us
        assert watches[name]() == pytest.approx(us)
        assert gpu.us - before == pytest.approx(2 * launches * us)
