"""Weights files: which of them decide, errors in others, and what they report about their choices."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from selectors_for_tests import learnable

from torch_reformer import ConvProblem, config
from torch_reformer.runtime import native
from torch_reformer.selector import train, weights_file
from torch_reformer.tuning.explain import explain


@pytest.fixture
def named(monkeypatch):
    """Activate weights files, until the end of the test, as TORCH_REFORMER_WEIGHTS would at import."""
    before = dict(weights_file._active)
    monkeypatch.setattr(weights_file, "_given", {})
    monkeypatch.setattr(weights_file, "_active", dict(before))

    def activate(*paths) -> None:
        monkeypatch.setenv(weights_file.VARIABLE, os.pathsep.join(map(str, paths)))
        weights_file.activate()

    yield activate
    native.remove_selector("gfx906")
    for weights in before.values():
        weights.activate()


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
    assert native.logits([native.Problem(*[1] * 14)], "gfx906").shape[1] == len(weights_file.load(trained).candidates)


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
        native.remove_selector("sm_91")


def test_weights_that_cannot_be_used_are_left_out(trained, named, tmp_path):
    """There is no exception, but one warning per file that names it; the package's weights stay in force."""
    os.mkfifo(tmp_path / "fifo.pt")
    (tmp_path / "damaged.pt").write_bytes(trained.read_bytes()[:1000])
    for file, reason in {
        tmp_path / "absent.pt": "No such file",
        tmp_path / "damaged.pt": "is not a weights file of torch_reformer, or is damaged",
        tmp_path: "Is a directory",
        tmp_path / "fifo.pt": "it is not a regular file",
        Path("/dev/zero"): "it is not a regular file",
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
    with pytest.raises(ValueError, match=rf"wrong\.pt (is not a weights file|was trained on).*{why}"):
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
    with pytest.raises(
        ValueError, match=r"wrong\.pt is not a weights file of torch_reformer, or is damaged: ."
    ) as error:
        weights_file.load(path)
    assert "\n" not in str(error.value)
    with pytest.raises(OSError):
        weights_file.load(tmp_path / "absent.pt")


@pytest.mark.parametrize("path", sorted(weights_file.FOLDER.glob("*.pt")), ids=lambda path: path.stem)
def test_shipped_weights_load(path):
    weights = weights_file.load(path)
    assert weights.name == path.stem
    assert set(weights.candidates) <= {*native.solver_names(), *native.WAYS}


def test_import_starts_no_threads():
    """A fork would lose them. PyTorch's pool is set to several threads, however few cores there are."""
    code = "import os, torch; n = lambda: len(os.listdir('/proc/self/task')); torch.set_num_threads(4); before = n()"
    code += "; import torch_reformer; print(n() - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


def test_saving_weights_leaves_nothing_else(trained, tmp_path, monkeypatch):
    def disk_full(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    for save in (weights_file.load(trained).save, lambda path: train.Checkpoint(path, "").save()):
        with pytest.raises(OSError, match="no space"):
            save(tmp_path / "folder/x.pt")
    assert not list((tmp_path / "folder").iterdir())


def test_experience_is_of_what_was_measured():
    weights = weights_file.load(weights_file.shipped("cpu"))
    p, here = ConvProblem(1, 64, 56, 56, 64, 3, 3), "cpu-avx512-2t"
    assert "of 284 held-out problems" in weights.experience(0.95, p, here)
    for problem, device, why in (
        (p, "cpu-avx512-64t", "it was not measured on cpu-avx512-64t"),
        (p.replace(dtype="INT8"), here, "there are no measurements of INT8"),
        (p.replace(n=2**20), here, "it was not measured on tensors of 2^31 elements and more"),
    ):
        experience = weights.experience(0.95, problem, device)
        assert experience == f"how often such a choice is right is not known: {why}"
    weights.metadata["timings"][0]["dtypes"] = ["INT8"]
    assert "held-out" in weights.experience(0.95, p.replace(dtype="INT8"), here)


def test_experience_without_a_failure():
    weights = weights_file.load(weights_file.shipped("cpu"))
    device = weights.metadata["timings"][0]["device"]
    weights.metadata["confidence"] = [{"from": 0.0, "problems": 4, "right": 1.0, "slowdown_if_wrong": 1.0}]
    experience = weights.experience(0.5, ConvProblem(1, 8, 4, 4, 8, 1, 1), device)
    assert experience == "in all of 4 held-out problems with such a choice it was the fastest"
