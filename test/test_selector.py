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

from torch_reformer import ConvProblem, _native, config
from torch_reformer.__main__ import main
from torch_reformer.explain import explain
from torch_reformer.measure import applicable
from torch_reformer.selector import fit, replay, train, weights_file
from torch_reformer.selector.dataset import fold_of, geometry_group, make_dataset, sequence
from torch_reformer.selector.lesson import Teachers, lesson
from torch_reformer.selector.model import Reformer
from torch_reformer.selector.scoring import confidence, figures, restricted, unmasked
from torch_reformer.selector.synthetic import neighbours
from torch_reformer.selector.targets import ONE_HOT, loss, of_entries, optimality
from torch_reformer.selector.timings import Record, Timing, write_timings
from torch_reformer.selector.versions import of_this_version

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
    arguments = ["train", "--timings", str(database), "--arch", "gfx906", "--out", str(out), "--epochs", "12"]
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
    data = make_dataset([("gfx906", [*records, impossible]), ("gfx900", [record(p, c=3.0, a=1.5)])])
    assert (data.candidates, data.architectures, data.keys) == (["a", "b", "c"], ["gfx900", "gfx906"], [str(p), str(p)])
    assert data.device.tolist() == [1, 0] and data.best_ms.tolist() == [1.0, 1.5]
    assert data.entries.tolist() == [[0, 1], [0, 2]]  # by name: the order by time would give the answer away
    assert torch.allclose(data.log_ratio, torch.tensor([[0, math.log(2)], [0, math.log(2)]]))
    own, columns = data.of("gfx900")
    assert own.candidates == ["a", "c"] and own.entries.tolist() == [[0, 1]] and columns.tolist() == [0, 2]
    named = data.known_to(["x", "c"])
    assert named.candidates == ["x", "c", "a", "b"] and named.entries.tolist() == [[2, 3], [2, 1]]
    with pytest.raises(ValueError, match="no record"):
        make_dataset([("gfx906", [impossible])])


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
    data = make_dataset([("gfx906", learnable(60))])
    own, columns = data.of("gfx906")
    teacher = Reformer(_native.feature_shape().rows, len(data.candidates), 16, 16, 1).eval()
    teachers = Teachers([teacher], 0, columns, torch.device("cpu"))
    both, targets = lesson(own, teachers, ["gfx906"], sharpness=8.0, share=0.5, count=40, seed=0)
    assert len(both) == len(own) + 40 and targets.shape == both.entries.shape
    assert torch.allclose(targets.sum(1), torch.ones(len(both))) and not targets[~both.valid].any()
    taught = of_entries(teachers.log_probabilities(own), own.entries).softmax(1)
    mixed = 0.5 * taught + 0.5 * optimality(own.log_ratio, own.valid, 8.0)
    assert torch.allclose(targets[: len(own), : own.entries.shape[1]], mixed, atol=1e-6)
    alone, _ = lesson(own, Teachers([], 0, columns, torch.device("cpu")), ["gfx906"], 8.0, 0.5, 40, 0)
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
    played = replay.Replay(weights, learnable(), "gfx906")
    weights.activate()
    try:
        for row in range(0, len(played.data), 37):
            logits = _native.logits([played.data.problems[row].native()], "gfx906")[0]
            times = learnable()[row].times
            choice = max(times, key=lambda name: logits[weights.candidates.index(name)])
            assert math.log(times[choice] / min(times.values())) == pytest.approx(played.slow[row].item(), abs=1e-6)
    finally:
        _native.remove_selector("gfx906")


def test_training_is_reproducible_and_goes_on_after_an_interruption(database, tmp_path, trained, monkeypatch):
    again = tmp_path / "again.pt"
    arguments = ["train", "--timings", str(database), "--arch", "gfx906", "--out", str(again), "--epochs", "12"]
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


@pytest.fixture
def named(monkeypatch):
    """What activates weights files as TORCH_REFORMER_WEIGHTS would at import, until the end of the test."""
    before = _native.selector("cpu")
    monkeypatch.setattr(weights_file, "_given", {})
    monkeypatch.setattr(weights_file, "_active", dict(weights_file._active))

    def activate(*paths) -> None:
        monkeypatch.setenv(weights_file.VARIABLE, os.pathsep.join(map(str, paths)))
        weights_file.activate()

    yield activate
    _native.remove_selector("gfx906")
    _native.set_selector("cpu", **before)


def changed(trained, path, **metadata) -> str:
    """The trained weights with other metadata, in another file."""
    weights = weights_file.load(trained)
    weights.metadata |= metadata
    weights.save(path)
    return str(path)


def test_weights_from_the_environment_decide(trained, named, tmp_path, monkeypatch, recwarn):
    later = changed(trained, tmp_path / "later.pt", problems=1)
    monkeypatch.setenv("HOME", str(tmp_path))
    named(trained, "", "~/later.pt", "")
    assert not recwarn and weights_file.given() == {"gfx906": tmp_path / "later.pt"}, "the last wins"
    assert weights_file.find("gfx906") == tmp_path / "later.pt"
    assert weights_file.deciding("gfx906").metadata["problems"] == 1
    named(later, trained)
    assert weights_file.find("gfx906") == trained
    assert _native.logits([_native.Problem(*[1] * 14)], "gfx906").shape[1] == len(weights_file.load(trained).candidates)


def test_weights_for_nvidia_in_the_package_decide(trained, named, tmp_path, monkeypatch):
    weights = weights_file.load(trained)
    names = config.solvers()[: len(weights.candidates)]
    changed(trained, tmp_path / "sm_91.pt", architecture="sm_91", candidates=names)
    monkeypatch.setattr(weights_file, "FOLDER", tmp_path)
    named()
    try:
        assert weights_file.deciding("sm_91").candidates == names
        assert "the selector's most probable" in explain(ConvProblem(8, 64, 28, 28, 64, 3, 3), "sm_91")
    finally:
        _native.remove_selector("sm_91")


def test_weights_that_cannot_be_used_are_left_out(trained, named, tmp_path):
    """Without an exception, and with one warning for each that names it; those of the package stay in force."""
    (tmp_path / "damaged.pt").write_bytes(trained.read_bytes()[:1000])
    for file, reason in {
        tmp_path / "absent.pt": "No such file",
        tmp_path / "damaged.pt": "is no weights file of torch_reformer, or is damaged",
        tmp_path: "Is a directory",
        changed(trained, tmp_path / "newer.pt", feature_version=99): "version 99 of the features",
        changed(trained, tmp_path / "cpu.pt", architecture="cpu"): "none of this package's solvers",
    }.items():
        with pytest.warns(UserWarning) as warned:
            named(file, trained)
        (message,) = [str(warning.message) for warning in warned]
        assert message.startswith(f"{weights_file.VARIABLE} names {file} as weights") and reason in message
        assert weights_file.given() == {"gfx906": trained}
        assert weights_file.deciding("cpu").candidates == weights_file.load(weights_file.shipped("cpu")).candidates


def test_every_command_runs_with_wrong_weights(database, tmp_path):
    code = """
import json, sys
from torch_reformer.__main__ import main
sys.exit(sum(main(arguments) for arguments in json.loads(sys.argv[1])))
"""
    key = learnable(1)[0].key
    (tmp_path / "problems").write_text(f"{key}\n")
    commands = [
        ["info"],
        ["explain", key],
        ["explain", key, "--device", "gfx908"],
        ["collect", "--problems", f"{tmp_path}/problems", "--out", f"{tmp_path}/new/db", "--repeats", "1"],
        ["train", "--timings", str(database), "--arch", "gfx906", "--out", f"{tmp_path}/w/x.pt"]
        + ["--epochs", "1", "--teachers", "0"],
        ["replay", "--timings", str(database), "--weights", f"{tmp_path}/w/x.pt"],
    ]
    environment = {**os.environ, weights_file.VARIABLE: f"{tmp_path}/absent.pt"}
    command = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("absent.pt as weights, which is left out: ") == 1


@pytest.mark.parametrize(
    "metadata, why",
    [
        ({"feature_version": 99}, r"version 99 of the features.*train it anew with `python -m torch_reformer train"),
        ({"architecture": "../x"}, '"../x" is no device'),
        ({"architecture": "cpu-avx2-1t"}, "cpu-avx2-1t is a device"),
        ({"candidates": ["a", "a"]}, r"candidates can't be \['a', 'a'\]"),
        ({"candidates": []}, "candidates"),
        ({"candidates": ["a", "b"]}, r"head.weight must have shape \(2, 32\)"),
        ({"model": {"width": 32, "hidden": 128, "blocks": 1}}, "blocks.1.down.bias.* missing or too many"),
        ({"model": {"width": 32, "hidden": "128", "blocks": 2}}, "model can't be"),
        ({"model": {"width": 32, "hidden": 128, "blocks": 10**12}}, "model can't be"),
        ({"folds": {"of": 7, "test": [0]}}, "folds can't be"),
        ({"confidence": []}, "confidence can't be"),
        ({"confidence": [{"from": 0}]}, "confidence can't be"),
        ({"scores": None}, "scores can't be None"),
        ({"timings": [{}]}, "timings can't be"),
    ],
)
def test_weights_with_wrong_metadata_are_an_error(metadata, why, trained, tmp_path):
    with pytest.raises(ValueError, match=rf"wrong\.pt (is no weights file|was trained on).*{why}"):
        weights_file.load(changed(trained, tmp_path / "wrong.pt", **metadata))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 100,
        [1],
        {"metadata": {}},
        {"metadata": {}, "tensors": {}},
        {"metadata": None, "tensors": None},
        lambda content: content["metadata"].pop("folds"),
        lambda content: content["tensors"].pop("device"),
        lambda content: content["tensors"].update(device=1.0),
        lambda content: content["tensors"].update(device=torch.zeros(1, 32, dtype=torch.double)),
        lambda content: content["tensors"].update(device=torch.full((1, 32), math.nan)),
        lambda content: content["tensors"].update(embedding=torch.zeros(7, 32)),
    ],
)
def test_what_is_no_weights_file_is_an_error(content, trained, tmp_path):
    path = tmp_path / "wrong.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif callable(content):
        whole = torch.load(trained, weights_only=True)
        content(whole)
        torch.save(whole, path)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=r"wrong\.pt is no weights file of torch_reformer, or is damaged: .") as error:
        weights_file.load(path)
    assert "\n" not in str(error.value)
    with pytest.raises(OSError):
        weights_file.load(tmp_path / "absent.pt")


@pytest.mark.parametrize("path", sorted(weights_file.FOLDER.glob("*.pt")), ids=lambda path: path.stem)
def test_shipped_weights_load(path):
    weights = weights_file.load(path)
    assert weights.architecture == path.stem and weights.knows_solvers() == (not path.stem.startswith("gfx"))


def test_import_starts_no_threads():
    """After a fork they would be missed. PyTorch's pool is told to have several, however few cores there are."""
    code = "import os, torch; n = lambda: len(os.listdir('/proc/self/task')); torch.set_num_threads(4); before = n()"
    code += "; import torch_reformer; print(n() - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


TRAIN = ["train", "--timings", "{db}", "--arch", "gfx906", "--out", "{tmp}/x.pt"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["train", "--timings", "gfx1030={db}", *TRAIN[3:]], "no database is of gfx906"),
        (["train", "--timings", "{tmp}/none", *TRAIN[3:]], "No such file"),
        (["train", "--timings", "foo={db}", *TRAIN[3:]], '"foo" is no device'),
        ([*TRAIN, "--arch", "gfx../../x"], '"gfx../../x" is no device'),
        ([*TRAIN, "--arch", "cpu"], "{db} was measured on is not known: give --timings cpu-avx512-2t={db}"),
        ([*TRAIN, "--epochs", "0"], "at least 1"),
        ([*TRAIN, "--seed", "-1"], "--seed must be from 0 to"),
        ([*TRAIN, "--seed", "9" * 30], "--seed must be from 0 to"),
        ([*TRAIN, "--device", "foo"], "--device foo is none that PyTorch has here"),
        ([*TRAIN, "--device", "cuda:99"], "--device cuda:99 is none that PyTorch has here"),
        ([*TRAIN, "--device", "meta"], "--device meta is none to train on"),
        ([*TRAIN, "--out", "{tmp}"], "{tmp}'"),
        ([*TRAIN, "--out", "/dev/null"], "it is no file that can be replaced: '/dev/null'"),
        ([*TRAIN, "--out", "{db}/x.pt"], "it can't be written (Not a directory): '{db}/x.pt'"),
        (
            [*TRAIN, "--out", "/proc/folder/x.pt"],
            "it can't be written (",
        ),
        (["replay", "--timings", "{db}", "--arch", "gfx1100"], "there are no weights for gfx1100"),
        (["replay", "--timings", "{db}", "--arch", "gfx"], '"gfx" is no device'),
        (["replay", "--timings", "{db}", "--arch", "cpu"], "is not known: give --device cpu-avx512-2t"),
        (["replay", "--timings", "{db}", "--arch", "cpu", "--device", "cpu"], "give --device cpu-avx512-2t"),
        (["replay", "--timings", "{db}", "--arch", "gfx908"], "the weights for gfx908 know none of this database's"),
        (["replay", "--timings", "{db}", "--weights", "{db}"], "{db} is no weights file"),
        (["replay", "--timings", "{db}", "--weights", "{tmp}"], "Is a directory: '{tmp}'"),
    ],
)
def test_bad_commands_end_with_a_sentence(arguments, sentence, database, tmp_path, capsys):
    assert main([argument.format(db=database, tmp=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert sentence.format(db=database, tmp=tmp_path) in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_saving_weights_leaves_nothing_else(trained, tmp_path, monkeypatch):
    def disk_full(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    for save in (weights_file.load(trained).save, lambda path: train.Checkpoint(path, "").save()):
        with pytest.raises(OSError, match="no space"):
            save(tmp_path / "folder/x.pt")
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("content", [b"", b"x" * 9, {"fingerprint": ""}, {"finished": 1, "current": 1}])
def test_a_damaged_checkpoint_ends_with_a_sentence(content, tmp_path):
    path = tmp_path / "x.pt.partial"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=r"x\.pt\.partial is damaged: delete it"):
        train.Checkpoint(path, "")


@pytest.mark.parametrize("content", [{"finished": [{}], "current": None}, {"finished": [], "current": {"step": 1}}])
def test_a_checkpoint_of_another_model_ends_with_a_sentence(content, tmp_path):
    path = tmp_path / "x.partial"
    torch.save({"fingerprint": "", **content}, path)
    data = make_dataset([("gfx906", learnable(60))])
    model = Reformer(_native.feature_shape().rows, len(data.candidates), 16, 16, 1)
    trainer = train.Trainer(train.Checkpoint(path, ""), torch.device("cpu"), quiet=True)
    with pytest.raises(ValueError, match="x.partial is damaged: delete it"):
        trainer.fit("", model, data, optimality(data.log_ratio, data.valid, 1.0), data, fit.FitOptions(steps=1), 0)


def test_databases_of_other_solvers_than_now():
    """Those that are gone are left out, those that came are named; MIOpen's databases know neither."""
    problem = ConvProblem(2, 8, 6, 6, 8, 3, 3, 1, 1)
    whole = Record(str(problem), tuple(Timing(name, 1.0, 0, "") for name in applicable(problem)))
    here = _native.device(None)
    assert of_this_version([whole], here) == ([whole], [])
    less = whole._replace(timings=(*whole.timings[:2], Timing("tile_7", 0.5, 0, "")))
    kept, warnings = of_this_version([whole, less], here)
    assert kept == [whole, less._replace(timings=less.timings[:2])]
    assert warnings[0] == "no solvers of this version: tile_7, of which 1 timings are left out"
    assert warnings[1].startswith("not timed for up to 1 records that they apply to: ")
    assert of_this_version(learnable(5), "gfx906") == (learnable(5), [])


def test_little_data_is_warned_of(tmp_path, capsys):
    write_timings(tmp_path / "db", learnable(90))
    arguments = ["train", "--timings", f"{tmp_path}/db", "--arch", "gfx906", "--out", f"{tmp_path}/x.pt"]
    assert main([*arguments, "--epochs", "1", "--teachers", "0"]) == 0
    assert "warning: scores on so few problems mean little" in capsys.readouterr().err
    kept = weights_file.load(tmp_path / "x.pt")
    assert kept.metadata["timings"][0]["dtypes"] == ["FP32"]
    trained_on = [r for r in learnable(90) if fold_of(r.problem) not in kept.metadata["folds"]["test"]]
    write_timings(tmp_path / "db", trained_on)
    assert main(["replay", "--timings", f"{tmp_path}/db", "--weights", f"{tmp_path}/x.pt", "--held-out"]) == 2
    assert f"none of the {len(trained_on)} records of {tmp_path}/db is of a geometry" in capsys.readouterr().err


def test_replay_says_what_it_is_of(trained, tmp_path, capsys):
    whole = learnable(90)
    single = record(ConvProblem(1, 4, 8, 8, 4, 3, 3), slow=1.0)
    impossible = Record(single.key.replace("6-6", "7-7"), whole[0].timings)
    write_timings(tmp_path / "db", [*whole, single, impossible])
    arguments = ["replay", "--timings", f"{tmp_path}/db", "--weights", str(trained)]
    assert main([*arguments, "--device", "gfx90a"]) == 0
    done = capsys.readouterr()
    assert "warning: " in done.err and "is for gfx906" in done.err
    head = done.out.partition("\n")[0]
    assert head.startswith(f"{trained} on {len(whole)} problems, those trained on included, device gfx90a; left out: ")
    assert "1 record with fewer than 2 times above 0" in head and "1 record of impossible geometry" in head
    assert main([*arguments, "--held-out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["held_out"] and found["device"] == "gfx906"
    assert found["problems"] + sum(found["left_out"].values()) == len(whole) + 2


@pytest.mark.parametrize("content", ["{}", "[]", '{"device', '{"device": "foo"}', '{"device": 1}'])
def test_damaged_sidecar_is_named(content, trained, tmp_path, capsys):
    write_timings(tmp_path / "db", learnable(30))
    (tmp_path / "db.meta.json").write_text(content)
    assert main(["replay", "--timings", f"{tmp_path}/db", "--weights", str(trained)]) == 2
    assert f"{tmp_path}/db.meta.json is damaged" in capsys.readouterr().err


def test_peers_times_that_no_kernel_takes_are_ignored(tmp_path):
    path = tmp_path / "peer.csv"
    path.write_bytes(b"\xef\xbb\xbfkey,ms,note\na,1.5\nb,0,x\nc,-1,x\nd,nan\ne,inf\nf,2,x,y\n")
    assert replay.read_peer(path) == replay.Peer({"a": 1.5, "f": 2.0}, 4)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("key,solver\na,b\n", "has no column ms: a peer's are key and ms"),
        ("", "has no column key and ms"),
        ("key,ms\na,1\nb\n", "line 3: a row is a key and its milliseconds, got None"),
        ("key,ms\na,fast\n", "line 2: a row is a key and its milliseconds, got 'fast'"),
        ("key,ms\na,1\nb,1\na,nan\n", "line 4: a is there a second time"),
    ],
)
def test_malformed_peer(tmp_path, text, sentence):
    (tmp_path / "peer.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"peer\.csv.*{sentence}"):
        replay.read_peer(tmp_path / "peer.csv")


def test_experience_is_of_what_was_measured():
    weights = weights_file.load(weights_file.shipped("cpu"))
    p, here = ConvProblem(1, 64, 56, 56, 64, 3, 3), "cpu-avx512-2t"
    assert "of 220 held-out problems" in weights.experience(0.95, p, here)
    for problem, device, why in (
        (p, "cpu-avx512-64t", "it was not measured on cpu-avx512-64t"),
        (p.replace(dtype="INT8"), here, "no measurements of INT8 are noted"),
        (p.replace(n=2**20), here, "it was not measured on tensors of 2^31 elements and more"),
    ):
        found = weights.experience(0.95, problem, device)
        assert found == f"how often such a choice is right is not known: {why}"
    weights.metadata["timings"][0]["dtypes"] = ["INT8"]
    assert "held-out" in weights.experience(0.95, p.replace(dtype="INT8"), here)


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
