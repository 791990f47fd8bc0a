"""Collection of timings: they are checked, resumed, divided among ranks, and never mixed."""

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from torch_reformer import ConvProblem, config
from torch_reformer.__main__ import main
from torch_reformer.runtime import native
from torch_reformer.selector.problems import read_problems
from torch_reformer.selector.timing_database import Database, merge, part_path
from torch_reformer.selector.timings import Record, Timing, read_timings, write_timings
from torch_reformer.tuning import collect
from torch_reformer.tuning.measure import ELIMINATIONS, applicable, measure
from torch_reformer.tuning.timing import Disturbed
from torch_reformer.tuning.workload import Workload

ROOT = Path(__file__).parent.parent
PROBLEMS = ROOT / "test/data/problems.jsonl"
RECORD = Record("8-6-6-1x1-8-6-6-1-0x0-1x1-1x1-0-NCHW-FP32-F", (Timing("aten", 1.0, 0, "forward"),))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One repeat per timing; SIGTERM stays pytest's."""
    monkeypatch.setattr(collect.signal, "signal", lambda *_: None)
    monkeypatch.setattr("torch_reformer.tuning.measure.stopwatches", _constant)


def _constant(calls, before, device):
    """Stopwatches that run each call once and report 10 us, 20 us and so on."""
    for name, call in calls.items():
        before(name)
        call()
    return {name: lambda us=10.0 * (index + 1): us for index, name in enumerate(calls)}


@pytest.fixture
def measured(monkeypatch):
    """Measured problems, in order."""
    seen = []

    def spy(problem, repeats, device):
        seen.append(problem)
        return measure(problem, repeats, device)

    monkeypatch.setattr(collect, "measure", spy)
    return seen


@pytest.fixture
def broken(monkeypatch):
    """Make aten_nhwc compute something that is wrong in one place."""
    compute = Workload.reformer

    def reformer(self):
        result = compute(self)
        if config.settings().force == "aten_nhwc":
            # PyTorch's own 16-bit gradients are far from exact on many CPUs: a noticeable error must be larger.
            result.view(-1)[0] += 100 if result.dtype.itemsize == 2 else 1
        return result

    monkeypatch.setattr(Workload, "reformer", reformer)


def run(out: Path, *options: str) -> int:
    return main(["collect", "--problems", str(PROBLEMS), "--out", str(out), *options])


def test_times_every_applicable_solver(tmp_path, capsys):
    out = tmp_path / "db.txt.xz"
    assert run(out, "--batch", "2", "--layouts", "NCHW,NHWC", "--dtype", "fp64", "--directions", "F,W") == 0
    problems = read_problems(PROBLEMS, 2, "FP64", ["F", "W"], ["NCHW", "NHWC"])
    records = read_timings(out)
    assert [record.problem for record in records] == problems
    for record, problem in zip(records, problems, strict=True):
        assert record.times.keys() == applicable(problem).keys()
        assert {timing.solver: timing.workspace for timing in record.timings} == applicable(problem)
        assert {timing.algorithm for timing in record.timings} == {
            "forward" if problem.direction == "F" else "weight_grad"
        }
        assert record.timings[0].ms == 0.01  # 10 us
    assert f"{out}: 12 problems" in capsys.readouterr().out


def test_sidecar_says_where_it_was_measured(tmp_path):
    run(tmp_path / "db", "--limit", "1")
    meta = json.loads((tmp_path / "db.meta.json").read_text())
    assert (meta["device"], meta["torch"]) == (native.device(None), torch.__version__)
    assert (meta["complete"], meta["wrong"]) == (True, {})
    assert sorted(os.listdir(tmp_path)) == ["db", "db.meta.json"]


def test_what_is_there_is_not_measured_again(tmp_path, measured):
    out = tmp_path / "db"
    run(out, "--limit", "4")
    assert len(measured) == 4
    run(out)
    assert len(measured) == 9 and len(set(measured)) == 9
    with config(forbid=["aten_nhwc"]):  # other solvers apply: the records no longer match
        run(out, "--limit", "2")
    assert measured[9:] == measured[:2]


def test_interrupted_and_resumed(tmp_path, monkeypatch, measured, capsys):
    out = tmp_path / "db"

    def interrupt(problem, repeats, device):
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(problem)
        return measure(problem, repeats, device)

    with monkeypatch.context() as patch:
        patch.setattr(collect, "measure", interrupt)
        assert run(out) == 130
    assert "interrupted" in capsys.readouterr().out
    assert len(read_timings(out)) == 3
    assert not Database(out).complete
    assert run(out) == 0
    assert len(measured) == 9 and len(set(measured)) == 9
    assert Database(out).complete


def test_out_of_minutes_and_resumed(tmp_path, measured, capsys):
    """No problem is begun after the time is up; such ranks are not merged, and the same command resumes."""
    out = tmp_path / "db"
    assert run(out, "--minutes", "0") == 0
    assert not measured and not Database(out).complete
    assert "goes on" in capsys.readouterr().out
    assert run(out, "--minutes", "60") == 0
    assert len(measured) == 9 and Database(out).complete
    assert "goes on" not in capsys.readouterr().out


@pytest.mark.parametrize("minutes", ["-1", "nan", "soon"])
def test_minutes_that_are_none(tmp_path, minutes, capsys):
    with pytest.raises(SystemExit):
        run(tmp_path / "db", "--minutes", minutes)
    assert "--minutes" in capsys.readouterr().err


def test_saves_now_and_then(tmp_path, monkeypatch):
    """A process that is killed without notice loses only the measurements since the last save."""
    monkeypatch.setattr(collect, "SAVE_SECONDS", -1)
    out, counts = tmp_path / "db", []

    def count(problem, repeats, device):
        counts.append(len(read_timings(out)))
        return measure(problem, repeats, device)

    monkeypatch.setattr(collect, "measure", count)
    run(out, "--limit", "3")
    assert counts == [0, 1, 2]


def test_wrong_solver_is_reported_and_left_out(tmp_path, broken, capsys):
    out = tmp_path / "db"
    assert run(out, "--limit", "3") == 1
    assert all("aten" in record.times and "aten_nhwc" not in record.times for record in read_timings(out))
    errors = capsys.readouterr().err
    assert "WRONG RESULTS for 3 problems" in errors and "aten_nhwc: its result is wrong" in errors
    assert Database(out).wrong.keys() == {record.key for record in read_timings(out)}


def test_wrong_solver_is_measured_again_once_it_is_right(tmp_path, monkeypatch):
    out = tmp_path / "db"
    with monkeypatch.context() as patch:
        patch.setattr(collect, "measure", lambda problem, repeats, device: _without_nhwc(problem))
        assert run(out, "--limit", "1") == 1
    assert run(out, "--limit", "1") == 0
    assert "aten_nhwc" in read_timings(out)[0].times


def _without_nhwc(problem):
    measurement = measure(problem)
    others = tuple(timing for timing in measurement.record.timings if timing.solver != "aten_nhwc")
    measurement.record = measurement.record._replace(timings=others)
    measurement.wrong["aten_nhwc"] = "its result is wrong"
    return measurement


@pytest.mark.parametrize("dtype", ["FP32", "FP64", "FP16", "BF16"])
@pytest.mark.parametrize("direction", ["F", "B", "W"])
def test_one_wrong_element_is_found(broken, dtype, direction):
    problem = ConvProblem(2, 8, 8, 8, 8, 3, 3, 1, 1, direction=direction, dtype=dtype, bias=direction == "F")
    measurement = measure(problem)
    assert measurement.wrong.keys() == {"aten_nhwc"}
    assert measurement.record.times.keys() == applicable(problem).keys() - {"aten_nhwc"}


def test_hopelessly_slow_solver_is_timed_once(monkeypatch):
    timed = Counter()

    def stopwatches(calls, before, device):
        def watch(name):
            timed[name] += 1
            return 101.0 if name == "aten_nhwc" else 10.0

        return {name: functools.partial(watch, name) for name in calls}

    monkeypatch.setattr("torch_reformer.tuning.measure.stopwatches", stopwatches)
    record = measure(ConvProblem(1, 8, 4, 4, 8, 1, 1), repeats=3).record
    assert timed.pop("aten_nhwc") == 1 and min(timed.values()) >= 3
    assert (record.times["aten"], record.times["aten_nhwc"]) == (0.01, 0.101)


def test_what_is_clearly_slower_is_timed_a_few_times_on_a_gpu(monkeypatch):
    """The rule for GPUs: one round finds solvers that are three times as slow, three rounds those a quarter slower."""
    timed, us = Counter(), {"aten": 10.0, "aten_nhwc": 31.0, "reference": 12.0}

    def stopwatches(calls, before, device):
        def watch(name):
            timed[name] += 1
            return us.get(name, 13.0)

        return {name: functools.partial(watch, name) for name in calls}

    monkeypatch.setattr("torch_reformer.tuning.measure.stopwatches", stopwatches)
    monkeypatch.setitem(ELIMINATIONS, "cpu", ELIMINATIONS["cuda"])
    record = measure(ConvProblem(1, 8, 4, 4, 8, 1, 1), repeats=6).record
    assert timed.pop("aten_nhwc") == 1 and timed.pop("aten") >= 6
    assert timed and set(timed.values()) == {3}
    assert record.times.keys() == applicable(record.problem).keys()


def watches(monkeypatch, times):
    """Make each solver's runs take these microseconds, repeating the last; solvers without times take 10."""

    def stopwatches(calls, before, device):
        remaining = {name: list(times.get(name, [10.0])) for name in calls}
        return {name: lambda us=us: us.pop(0) if len(us) > 1 else us[0] for name, us in remaining.items()}

    monkeypatch.setattr("torch_reformer.tuning.measure.stopwatches", stopwatches)


def test_what_other_programs_disturbed_is_timed_again(monkeypatch):
    watches(monkeypatch, {"aten": [Disturbed(20_000.0), 12.0], "aten_nhwc": [11.0, *[Disturbed(20_000.0)] * 3, 11.0]})
    measurement = measure(ConvProblem(1, 8, 4, 4, 8, 1, 1))
    assert (measurement.record.times["aten"], measurement.record.times["aten_nhwc"]) == (0.012, 0.011)
    assert measurement.disturbed
    watches(monkeypatch, {})
    assert not measure(ConvProblem(1, 8, 4, 4, 8, 1, 1)).disturbed


def test_noisy_machine_is_warned_of(tmp_path, monkeypatch, capsys):
    watches(monkeypatch, {"aten": [Disturbed(20_000.0)]})
    assert run(tmp_path / "db", "--limit", "2") == 0
    assert "warning: other programs disturbed the timing of 2 of 2 problems" in capsys.readouterr().err
    watches(monkeypatch, {})
    assert run(tmp_path / "other", "--limit", "2") == 0
    assert "warning" not in capsys.readouterr().err


def test_failing_solver_is_reported(monkeypatch):
    compute = Workload.reformer

    def reformer(self):
        if config.settings().force == "aten_nhwc":
            raise RuntimeError("no memory")
        return compute(self)

    monkeypatch.setattr(Workload, "reformer", reformer)
    assert measure(ConvProblem(1, 8, 4, 4, 8, 1, 1)).wrong == {"aten_nhwc": "it failed: no memory"}
    assert config.settings().force is None


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (ConvProblem(1, 8, 4, 4, 8, 1, 1, dtype="INT8"), "PyTorch has no convolution of INT8"),
        (ConvProblem(2**15, 2**10, 2**10, 1, 1, 1, 1), r"one of its tensors has 2\^31 elements or more"),
        (ConvProblem(1, 1, 2**15, 2**15, 1, 1, 1), "more than half of the"),
    ],
)
def test_problem_that_cannot_be_run(monkeypatch, problem, sentence):
    monkeypatch.setattr("torch_reformer.tuning.measure.os.sysconf", lambda name: 4096)  # a machine of 16 MiB
    with pytest.raises(ValueError, match=sentence):
        measure(problem)


def test_problem_that_cannot_be_run_is_left_out(tmp_path, capsys):
    problems = tmp_path / "problems"
    problems.write_text(f"{RECORD.key.replace('FP32', 'INT8')}\n{RECORD.key}\n")
    assert main(["collect", "--problems", str(problems), "--out", str(tmp_path / "db")]) == 0
    assert [record.key for record in read_timings(tmp_path / "db")] == [RECORD.key]
    captured = capsys.readouterr()
    assert "left out: " in captured.err and "1 problems could not be run" in captured.out


@pytest.mark.parametrize("out", ["/proc/folder/db", "{tmp}/file/db"])
def test_a_place_that_cannot_be_written_is_named(out, tmp_path, measured, capsys):
    (tmp_path / "file").write_text("")
    out = out.format(tmp=tmp_path)
    assert main(["collect", "--problems", str(PROBLEMS), "--out", out]) == 2
    assert f"torch_reformer collect: {out}: it can't be written (" in capsys.readouterr().err
    assert not measured


def test_foreign_database_is_not_touched(tmp_path, capsys):
    out = tmp_path / "gfx908.fdb.txt"
    out.write_text("key=solver:1.0,0,a\n")
    assert run(out) == 2
    assert "gfx908.fdb.txt.meta.json does not: timings can't be added to it" in capsys.readouterr().err
    assert out.read_text() == "key=solver:1.0,0,a\n"


def test_devices_are_not_mixed(tmp_path, capsys):
    out = tmp_path / "db"
    run(out, "--limit", "1")
    threads = torch.get_num_threads()
    try:
        assert run(out, "--threads", str(threads + 1)) == 2
    finally:
        torch.set_num_threads(threads)
    assert "was measured with device cpu-" in capsys.readouterr().err


def test_damaged_sidecar(tmp_path, capsys):
    run(tmp_path / "db", "--limit", "1")
    (tmp_path / "db.meta.json").write_text("{")
    assert run(tmp_path / "db") == 2
    assert "db.meta.json is damaged" in capsys.readouterr().err


def _share(path: Path, complete: bool, *records: Record) -> None:
    database = Database(path)
    for record in records:
        database.add(record, {})
    database.complete = complete
    database.save()


def test_the_last_to_finish_merges(tmp_path):
    out = tmp_path / "db"
    other = RECORD._replace(key=RECORD.key.replace("-1-0x0", "-2-0x0"))
    _share(part_path(out, 0), True, RECORD)
    assert merge(out, 2) is None  # rank 1 has not begun
    _share(part_path(out, 1), False, other)
    assert merge(out, 2) is None  # nor finished
    _share(part_path(out, 1), True)
    assert [*merge(out, 2).records] == [RECORD.key, other.key]
    assert sorted(os.listdir(tmp_path)) == ["db", "db.meta.json"]


def test_merge_by_hand(tmp_path, capsys):
    out = tmp_path / "db"
    assert main(["collect", "--merge", "--out", str(out)]) == 2
    assert "there is nothing to merge" in capsys.readouterr().err
    _share(part_path(out, 1), False, RECORD)
    assert main(["collect", "--merge", "--out", str(out)]) == 0
    assert read_timings(out) == [RECORD]


def test_a_share_is_complete_once_its_timings_are_there(tmp_path, monkeypatch):
    """Another process may merge and delete the share as soon as it is marked complete."""
    out = tmp_path / "db"
    _share(part_path(out, 0), True)
    share = Database(part_path(out, 1))
    share.add(RECORD, {})
    share.complete = True

    def write_while_another_merges(*arguments):
        assert merge(out, 2) is None
        write_timings(*arguments)

    monkeypatch.setattr("torch_reformer.selector.timing_database.write_timings", write_while_another_merges)
    share.save()
    monkeypatch.undo()
    assert merge(out, 2).records == {RECORD.key: RECORD}


def test_two_processes_share_the_list(tmp_path):
    out = tmp_path / "db"
    command = [sys.executable, "-m", "torch_reformer", "collect", "--problems", PROBLEMS, "--out", out]
    command += ["--repeats", "1", "--threads", "1"]
    processes = [
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}, stderr=subprocess.DEVNULL
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert {record.problem for record in read_timings(out)} == set(read_problems(PROBLEMS))
    assert sorted(os.listdir(tmp_path)) == ["db", "db.meta.json"]
