"""The configuration: forced and forbidden solvers, limits, nested settings, and the environment."""

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import torch_reformer
from torch_reformer import ConvProblem, config
from torch_reformer.runtime import config as configuration
from torch_reformer.runtime import native
from torch_reformer.selector.candidates import candidates

TEST = Path(__file__).parent
CSRC = TEST.parent / "csrc"
PROBLEM = ConvProblem(2, 8, 6, 6, 8, 3, 3, 1, 1)


def chosen() -> str:
    return next(candidate.name for candidate in candidates(PROBLEM) if candidate.chosen)


def refusal(name: str) -> str | None:
    return next(candidate.reason for candidate in candidates(PROBLEM) if candidate.name == name)


def test_forced_solver_is_chosen():
    for name in ("aten_nhwc", "reference"):  # even the reference, which is never chosen otherwise
        with config(force=name):
            assert chosen() == name
    assert chosen() != "reference"


def test_forced_solver_runs():
    """The reference adds up in another order than PyTorch, so its result shows that it ran."""
    x, w = torch.randn(2, 64, 9, 9), torch.randn(8, 64, 3, 3)
    with config(force="aten"):
        assert torch.equal(torch_reformer.conv2d(x, w), torch.conv2d(x, w))
    with config(force="reference"):
        oracle = torch_reformer.conv2d(x, w)
    assert not torch.equal(oracle, torch.conv2d(x, w))
    torch.testing.assert_close(oracle, torch.conv2d(x, w), rtol=1e-4, atol=1e-4)


def test_forced_solver_that_does_not_apply_is_passed_over():
    with config(force="aten_nchw"):  # the problem is in NCHW already
        assert chosen() != "aten_nchw"


def test_only_aten_left():
    with config(forbid=[name for name in config.solvers() if name != "aten"]):
        assert chosen() == "aten"
        assert refusal("aten_nhwc") == "it is forbidden by the configuration"


def test_workspace_limit():
    with config(workspace_limit=0):
        assert refusal("aten_nhwc") == "its workspace is larger than the configured limit"
        assert refusal("aten") is None
    assert refusal("aten_nhwc") is None


def test_workspace_limit_spares_the_first_solver():
    """Where PyTorch's own kernel is broken, the "aten" solver takes a detour and any memory that it needs."""
    problem = ConvProblem(64, 8, 64, 3, 8, 3, 3, stride_w=2, dtype="BF16", direction="W")
    with config(workspace_limit=0):
        aten = next(candidate for candidate in candidates(problem) if candidate.name == "aten")
    assert aten.reason is None and aten.workspace_bytes > 0


def test_nesting_keeps_what_is_not_named_and_restores():
    before = config.settings()
    with config(force="aten", forbid=["aten_nhwc"]) as outer:
        with config(force=None, deterministic=True) as inner:
            assert inner == configuration.Settings(None, ("aten_nhwc",), before.workspace_limit, True)
        assert config.settings() == outer
    assert config.settings() == before


def test_restored_after_an_exception():
    before = config.settings()
    with pytest.raises(KeyError), config(force="aten"):
        raise KeyError
    assert config.settings() == before


def test_without_with_it_stays():
    before = config.settings()
    restore = config(force="aten_nhwc")
    assert chosen() == "aten_nhwc"
    with restore:
        pass
    assert config.settings() == before


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"force": "magic"}, "there is no solver 'magic'; there are aten, "),
        ({"forbid": ["aten_nhwc", "magic"]}, "there is no solver 'magic'; there are aten, "),
        ({"forbid": ["aten"]}, "the solver 'aten' can't be forbidden"),
        ({"forbid": "aten_nhwc"}, "forbid must be a list of solver names, got the string 'aten_nhwc'"),
        ({"workspace_limit": -1}, "the workspace limit must not be negative"),
    ],
)
def test_bad_setting_changes_nothing(settings, sentence):
    before = config.settings()
    with pytest.raises(ValueError, match=sentence):
        config(**settings)
    assert config.settings() == before


def test_unknown_setting_changes_nothing():
    before = config.settings()
    sentence = "config: there is no setting 'nope'; there are force, forbid, workspace_limit, deterministic, "
    with pytest.raises(TypeError, match=f"^{sentence}reduced_accuracy, epilogues$"):
        config(force="aten", nope=1)
    assert config.settings() == before


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, configuration.Settings()),
        ({"FORCE": "", "FORBID": ""}, configuration.Settings()),
        ({"FORCE": "aten"}, configuration.Settings(force="aten")),
        ({"FORBID": "aten_nhwc, gemm_1x1,"}, configuration.Settings(forbid=("aten_nhwc", "gemm_1x1"))),
        (
            {"WORKSPACE_LIMIT": "1024", "DETERMINISTIC": "1"},
            configuration.Settings(workspace_limit=1024, deterministic=True),
        ),
    ],
)
def test_environment(environment, settings):
    assert (
        configuration._from_environment({f"TORCH_REFORMER_{name}": value for name, value in environment.items()})
        == settings
    )


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("WORKSPACE_LIMIT", "1GB", "TORCH_REFORMER_WORKSPACE_LIMIT must be a number of bytes, got '1GB'"),
        ("WORKSPACE_LIMIT", "-1", "TORCH_REFORMER_WORKSPACE_LIMIT must be a number of bytes, got '-1'"),
        ("DETERMINISTIC", "yes", "TORCH_REFORMER_DETERMINISTIC must be 0 or 1, got 'yes'"),
    ],
)
def test_bad_environment(name, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        configuration._from_environment({f"TORCH_REFORMER_{name}": value})


def test_environment_is_read_at_import():
    environment = {**os.environ, "TORCH_REFORMER_FORCE": "aten_nhwc", "TORCH_REFORMER_WORKSPACE_LIMIT": "1048576"}
    command = [sys.executable, "-m", "torch_reformer", "explain", str(PROBLEM)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("choice   aten_nhwc: the configuration forces it\n")


def test_another_threads_settings_are_not_taken_back():
    """Two threads' settings overlap, and the first to begin ends first."""
    before = config.settings()
    entered, left = threading.Event(), threading.Event()

    def other():
        with config(deterministic=True, force="aten_nhwc"):
            entered.set()
            left.wait()

    thread = threading.Thread(target=other)
    with config(force="aten"):
        thread.start()
        entered.wait()
    assert config.settings() == dataclasses.replace(before, deterministic=True, force="aten_nhwc")
    left.set()
    thread.join()
    assert config.settings() == before


def test_what_is_set_for_good_is_not_remembered_twice():
    with config():
        for _ in range(100):
            config(force="aten")
            config(force=None)
        assert len(configuration._overrides) < 5
        with config(force="aten_nhwc"):
            config(deterministic=True)
        assert config.settings().deterministic and config.settings().force is None
        config(deterministic=False)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_while_another_thread_sets_something(monkeypatch):
    setting, set_config = threading.Event(), native.set_config

    def slowly(*values):
        setting.set()
        time.sleep(0.2)
        set_config(*values)

    monkeypatch.setattr(native, "set_config", slowly)
    thread = threading.Thread(target=config)
    thread.start()
    setting.wait()
    if (child := os.fork()) == 0:
        signal.alarm(5)
        with config(force="aten"):
            os._exit(0)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def check_program(program: Path, sources: list[Path]) -> None:
    """Compile test/<name>.cpp with these files, and run it."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    headers = [f"-I{folder}" for folder in (CSRC, Path(torch.__file__).parent / "include")]
    command = [*compiler, "-std=c++17", "-O1", *headers, "-o", program, TEST / f"{program.name}.cpp", *sources]
    subprocess.run([*command, "-pthread"], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow  # it compiles
def test_what_a_thread_remembers_is_bounded(tmp_path):
    check_program(tmp_path / "set_cache", [])


@pytest.mark.slow  # it compiles
def test_more_than_64_solvers(tmp_path):
    sources = [CSRC / f"{name}.cpp" for name in ("device", "conv/problem", "program/program")]
    sources += [CSRC / f"program/{name}.cpp" for name in ("accesses", "program_key", "traits")]
    sources += [CSRC / f"dispatch/{name}.cpp" for name in ("config", "decide", "products", "selectors")]
    sources += [CSRC / f"selector/{name}.cpp" for name in ("features", "packing", "selector")]
    check_program(tmp_path / "many_solvers", sources)


def test_slow_way_round_is_no_candidate():
    """On NVIDIA's GPUs cuDNN is fast for dense problems in NHWC, but slow for groups."""

    def refusal(device: str, **changes) -> str | None:
        problem = PROBLEM.replace(layout="NHWC", **changes)
        return next(candidate.reason for candidate in candidates(problem, device) if candidate.name == "aten_nchw")

    assert refusal("sm_90") == "in NHWC cuDNN is faster as it is"
    assert refusal("sm_90", groups=4) is refusal("gfx90a") is None
