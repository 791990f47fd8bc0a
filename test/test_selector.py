"""Selectors from end to end: databases, targets, training, weights files, replay. The native inference is tested in
test_selector_inference.py, the blocks in test_model.py."""

import csv
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from torch_reformer import ConvProblem, _native
from torch_reformer.__main__ import main
from torch_reformer.selector import replay, weights_file
from torch_reformer.selector.dataset import fold_of, geometry_group, make_dataset, sequence
from torch_reformer.selector.lesson import Teachers, lesson
from torch_reformer.selector.model import Reformer
from torch_reformer.selector.scoring import confidence, figures, restricted, unmasked
from torch_reformer.selector.synthetic import neighbours
from torch_reformer.selector.targets import ONE_HOT, loss, of_entries, optimality
from torch_reformer.selector.timings import Record, Timing, write_timings

NAN_LOGITS = float("-inf")


def record(problem: ConvProblem, **times: float) -> Record:
    return Record(str(problem), tuple(Timing(name, ms, 0, "x") for name, ms in times.items()))


def learnable(count: int = 900) -> list[Record]:
    """Records whose best kernel follows from the problem: "small" below 64 channels, else "wide", and for 1x1 always
    "point"; "slow" never."""
    records = []
    for i in range(count):
        c, h, filter = 8 + 3 * (i * 7 % 40), 4 + i % 29, (1, 3, 5)[i % 3]
        p = ConvProblem(1 + i % 5, c, h, h, 16 + i % 11, filter, filter, direction="FBW"[i // 3 % 3])
        if filter <= h:
            best = "point" if filter == 1 else "small" if c < 64 else "wide"
            times = dict.fromkeys(("wide", "small", *(["point"] if filter == 1 else [])), 2.0) | {best: 1.0}
            records.append(record(p, **times, slow=5.0))
    return list({r.key: r for r in records}.values())


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("timings") / "db.fdb.txt.xz"
    write_timings(path, learnable())
    return path


@pytest.fixture(scope="module")
def trained(database, tmp_path_factory):
    out = tmp_path_factory.mktemp("weights") / "mine.pt"
    arguments = ["train", "--timings", str(database), "--arch", "gfx1", "--out", str(out), "--epochs", "12"]
    assert main([*arguments, "--teachers", "0"]) == 0
    return out


def test_siblings_share_a_fold():
    p = ConvProblem(8, 16, 14, 14, 32, 3, 3, 1, 1)
    twins = [p.replace(n=64), p.replace(direction="B"), p.replace(dtype="FP16", layout="NHWC")]
    swapped = p.replace(c=32, k=16)
    for sibling in (*twins, swapped):
        assert geometry_group(sibling) == geometry_group(p) and fold_of(sibling) == fold_of(p)
    assert geometry_group(p.replace(h=15)) != geometry_group(p)
    # Written down, so that weights' held-out problems stay held out in later versions.
    assert [fold_of(p), fold_of(p.replace(c=48)), fold_of(p.replace(groups=2))] == [14, 14, 2]


def test_dataset_leaves_out_what_teaches_nothing():
    p = ConvProblem(1, 4, 8, 8, 4, 3, 3)
    impossible = Record(str(p).replace("6-6", "7-7"), record(p, a=1.0, b=2.0).timings)
    records = [
        record(p, b=2.0, a=1.0, zero=0.0),
        record(p.replace(n=2), a=1.0),
        record(p.replace(n=3), a=1.0, zero=0.0),
    ]
    data = make_dataset([("gfx1", [*records, impossible]), ("gfx0", [record(p, c=3.0, a=1.5)])])
    assert (data.candidates, data.architectures, data.keys) == (["a", "b", "c"], ["gfx0", "gfx1"], [str(p), str(p)])
    assert data.device.tolist() == [1, 0] and data.best_ms.tolist() == [1.0, 1.5]
    assert data.entries.tolist() == [[0, 1], [0, 2]]  # by name: the order by time would give the answer away
    assert torch.allclose(data.log_ratio, torch.tensor([[0, math.log(2)], [0, math.log(2)]]))
    own, columns = data.of("gfx0")
    assert own.candidates == ["a", "c"] and own.entries.tolist() == [[0, 1]] and columns.tolist() == [0, 2]
    named = data.known_to(["x", "c"])
    assert named.candidates == ["x", "c", "a", "b"] and named.entries.tolist() == [[2, 3], [2, 1]]
    with pytest.raises(ValueError, match="no record"):
        make_dataset([("gfx1", [impossible])])


def test_targets_are_probabilities_of_run_times():
    log_ratio = torch.tensor([[0.0, math.log(2), 0.0]])
    valid = torch.tensor([[True, True, False]])
    assert torch.allclose(optimality(log_ratio, valid, 1.0), torch.tensor([[2 / 3, 1 / 3, 0.0]]))
    assert torch.allclose(optimality(log_ratio, valid, 3.0), torch.tensor([[8 / 9, 1 / 9, 0.0]]))
    assert torch.equal(optimality(log_ratio, valid, ONE_HOT), torch.tensor([[1.0, 0.0, 0.0]]))


def test_what_was_not_timed_is_unknown_not_slow():
    entries = torch.tensor([[0, 1, -1]])
    targets, log_ratio = torch.tensor([[0.75, 0.25, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    logits = torch.randn(1, 4, dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(logits, entries, targets, log_ratio, 2.0, 0.0), logits)
    assert torch.equal(gradient[0, 2:], torch.zeros(2, dtype=torch.double)) and gradient[0, :2].abs().min() > 0
    # The cross-entropy is least where the model's probabilities are the targets'.
    exact = torch.tensor([[0.75, 0.25, 1.0, 1.0]], dtype=torch.double).log().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(exact, entries, targets, log_ratio, 0.0, 0.0), exact)
    assert gradient.abs().max() < 1e-7
    assert torch.autograd.gradcheck(lambda z: loss(z, entries, targets.double(), log_ratio.double(), 2.0, 0.3), logits)


def test_scores():
    inf = float("-inf")
    entries = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1], [2, 3, 0, 1], [3, 4, -1, -1]])
    log_ratio = torch.tensor([[0.0, 0.1, 0.2, 0.3], [0.0, 0.5, 0.0, 0.0], [0.4, 0.0, 0.1, 0.7], [0.0, 0.9, 0.0, 0.0]])
    logits = torch.tensor([[0.0, 1, 0, 0, 9], [0.0, 1, 0, 0, 9], [5.0, 0, 0, 0, 0], [0.0, 0, 0, inf, inf]])
    slow = restricted(logits, entries, log_ratio)
    assert torch.allclose(slow, torch.tensor([0.1, 0.5, 0.1, 0.9]))  # the last: knows none, so the slowest
    # A missing choice: the slowest of a full record; of a shorter one it does not apply, and the next choice counts.
    assert torch.allclose(unmasked(logits, entries, log_ratio), torch.tensor([0.3, 0.5, 0.1, 0.9]))
    found = figures(torch.tensor([0.0, math.log(4)]), torch.tensor([0.0, 0.0]))
    assert (found["problems"], found["top1"]) == (2, 0.5)
    assert found["slowdown_geomean"] == pytest.approx(2) and found["slowdown_mean"] == pytest.approx(2.5)
    assert found["unmasked_slowdown_geomean"] == 1
    bins = confidence(logits[:3], entries[:3], log_ratio[:3])
    assert sum(b["problems"] for b in bins) == 3 and all(b["slowdown_if_wrong"] >= 1 for b in bins)


def test_neighbours_are_new_and_possible():
    problems = [r.problem for r in learnable(60)]
    found = neighbours(problems, 300, seed=1)
    assert len(found) == len(set(found)) == 300 and not set(found) & set(problems)
    for problem in found:
        assert ConvProblem.parse(str(problem)) == problem
    assert found == neighbours(problems, 300, seed=1) != neighbours(problems, 300, seed=2)


def test_lesson_mixes_what_is_measured_with_what_is_taught():
    data = make_dataset([("gfx1", learnable(60))])
    own, columns = data.of("gfx1")
    teacher = Reformer(_native.feature_shape().rows, len(data.candidates), 16, 16, 1).eval()
    teachers = Teachers([teacher], 0, columns, torch.device("cpu"))
    both, targets = lesson(own, teachers, ["gfx1"], sharpness=8.0, share=0.5, count=40, seed=0)
    assert len(both) == len(own) + 40 and targets.shape == both.entries.shape
    assert torch.allclose(targets.sum(1), torch.ones(len(both))) and not targets[~both.valid].any()
    taught = of_entries(teachers.log_probabilities(own), own.entries).softmax(1)
    mixed = 0.5 * taught + 0.5 * optimality(own.log_ratio, own.valid, 8.0)
    assert torch.allclose(targets[: len(own), : own.entries.shape[1]], mixed, atol=1e-6)
    alone, _ = lesson(own, Teachers([], 0, columns, torch.device("cpu")), ["gfx1"], 8.0, 0.5, 40, 0)
    assert len(alone) == len(own)


def test_learns_and_replays(trained, database, tmp_path, capsys):
    weights = weights_file.load(trained)
    assert weights.metadata["scores"]["top1"] > 0.8, "groups that were never trained on"
    peer = tmp_path / "peer.csv"
    with peer.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("key", "solver", "ms"), *((r.key, "slow", r.times["slow"]) for r in learnable()[:50])])
    arguments = ["replay", "--timings", str(database), "--weights", str(trained), "--peer", f"slow={peer}"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == len(learnable()) and found["top1"] > 0.8
    assert 1 <= found["slowdown_geomean"] <= found["slowdown_mean"] and found["unmasked_slowdown_geomean"] >= 1
    assert found["peers"]["slow"]["problems"] == 50 and 4 < found["peers"]["slow"]["speedup_geomean"] <= 5
    for key in ("speedup_mean", "speedup_trimmed_mean", "speedup_total"):
        assert found["peers"]["slow"][key] > 1
    assert main([*arguments, "--held-out"]) == 0
    assert "over slow on" in capsys.readouterr().out


def test_replay_is_that_of_the_native_inference(trained, database):
    weights = weights_file.load(trained)
    played = replay.Replay(weights, learnable(), "gfx1")
    weights.activate()
    try:
        for row in range(0, len(played.data), 37):
            logits = _native.logits([played.data.problems[row].native()], "gfx1")[0]
            times = learnable()[row].times
            choice = max(times, key=lambda name: logits[weights.candidates.index(name)])
            assert math.log(times[choice] / min(times.values())) == pytest.approx(played.slow[row].item(), abs=1e-6)
    finally:
        _native.remove_selector("gfx1")


def test_training_is_reproducible_and_goes_on_after_an_interruption(database, tmp_path, trained, monkeypatch):
    from torch_reformer.selector import fit

    again = tmp_path / "again.pt"
    arguments = ["train", "--timings", str(database), "--arch", "gfx1", "--out", str(again), "--epochs", "12"]
    epochs, whole = [], fit.Fit.run_epoch

    def interrupted(self, *rest):
        epochs.append(self.epoch)
        if len(epochs) == 6:
            raise KeyboardInterrupt
        return whole(self, *rest)

    monkeypatch.setattr(fit.Fit, "run_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main([*arguments, "--teachers", "0"])
    assert main([*arguments, "--teachers", "0", "--seed", "1"]) == 2, "a checkpoint of another training"
    assert main([*arguments, "--teachers", "0"]) == 0
    assert epochs.count(5) == 2 and epochs.count(4) == 1
    first, second = (weights_file.load(path).tensors for path in (trained, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not list(tmp_path.glob("*.partial"))


def test_weights_from_the_environment_decide(trained):
    code = "from torch_reformer import _native; print(_native.logits([_native.Problem(*[1] * 14)], 'gfx1').shape[1])"
    environment = {**os.environ, weights_file.VARIABLE: str(trained)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(len(weights_file.load(trained).candidates)), done.stderr


def test_weights_of_other_features_are_an_error(trained, tmp_path):
    weights = weights_file.load(trained)
    weights.metadata["feature_version"] += 1
    weights.save(tmp_path / "newer.pt")
    with pytest.raises(
        ValueError, match=r"version 2 of the features.*train it anew with `python -m torch_reformer train"
    ):
        weights_file.load(tmp_path / "newer.pt")
    (tmp_path / "damaged.pt").write_bytes(trained.read_bytes()[:1000])
    with pytest.raises(ValueError, match="no weights file"):
        weights_file.load(tmp_path / "damaged.pt")
    with pytest.raises(OSError):
        weights_file.load(tmp_path / "absent.pt")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["train", "--timings", "gfx2={db}", "--arch", "gfx1", "--out", "{tmp}/x.pt"], "no database is of gfx1"),
        (["train", "--timings", "{db}", "--arch", "gfx1", "--out", "{tmp}/x.pt", "--epochs", "0"], "at least 1"),
        (["train", "--timings", "{tmp}/none", "--arch", "gfx1", "--out", "{tmp}/x.pt"], "No such file"),
        (["replay", "--timings", "{db}", "--arch", "gfx7"], "there are no weights for gfx7"),
    ],
)
def test_bad_commands_end_with_a_sentence(arguments, sentence, database, tmp_path, capsys):
    assert main([argument.format(db=database, tmp=tmp_path) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_features_of_a_batch_are_those_of_each():
    problems = [r.problem for r in learnable(20)]
    rows, weights = sequence(problems, "cpu-avx512-2t")
    shape = _native.feature_shape()
    assert rows.shape == weights.shape == (len(problems), shape.tokens, shape.terms)
    assert 0 <= rows.min() and rows.max() < shape.rows
    one = [sequence([problem], "cpu-avx512-2t")[0][0] for problem in problems]
    assert torch.equal(torch.stack(one), rows)
    other_threads, _ = sequence(problems, "cpu-avx512-64t")
    assert not torch.equal(other_threads, rows)
