"""Fixtures of every test: a known seed, and settings and thread counts that are restored."""

import os

# Waiting threads sleep: with more threads than free cores, tests that spin would take ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hypothesis  # noqa: E402
import kernel_folders  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from selectors_for_tests import learnable, no_selector  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402

import torch_reformer  # noqa: E402
from torch_reformer.__main__ import main  # noqa: E402
from torch_reformer.runtime import native  # noqa: E402
from torch_reformer.selector.timings import write_timings  # noqa: E402

functorch_config.enable_autograd_cache = False  # tests compile their graphs instead of loading them from the cache
if hasattr(functorch_config, "error_on_custom_op_aliasing"):  # torch sets it in CI only, and older ones lack it
    functorch_config.error_on_custom_op_aliasing = True
os.environ["TORCH_REFORMER_RAISE_ERRORS"] = "1"  # by default the compiler leaves out a stage that fails

# A failure prints the example and a line that reproduces it; `pytest --hypothesis-seed=N` repeats a whole run. In CI
# the examples are always the same: CI judges a change, searching for other failures is left to people.
hypothesis.settings.register_profile("reformer", deadline=None, print_blob=True, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("reformer")

# Load NVRTC as torch for CUDA does: NVIDIA's solvers are then candidates in every file's tests, in any order.
kernel_folders.load_nvrtc()


def pytest_collection_modifyitems(config, items):
    """Skip tests of GPUs on machines without one."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no GPU here"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    return request.param


def _weights() -> dict | None:
    selector = native.selector("cpu")
    return selector and selector["tensors"]


@pytest.fixture(autouse=True)
def _fresh_process_state():
    """Start each test from one seed, and restore random state, threads, settings and weights after it."""
    threads, defaults = torch.get_num_threads(), torch_reformer.config.settings()
    weights = _weights()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)
    assert torch_reformer.config.settings() == defaults, "the test left settings behind"
    assert _weights() is weights, "the test left other weights behind"


@pytest.fixture
def static_rule():
    """Use the static rule on the CPU, without weights. A selector that the test sets is removed after it."""
    with no_selector("cpu"):
        yield


@pytest.fixture(scope="session")
def database(tmp_path_factory):
    """A find-db of problems from which a selector can learn."""
    path = tmp_path_factory.mktemp("timings") / "db.fdb.txt.xz"
    write_timings(path, learnable())
    return path


@pytest.fixture(scope="session")
def trained(database, tmp_path_factory):
    """The weights file of a selector that was trained on `database`."""
    out = tmp_path_factory.mktemp("weights") / "mine.pt"
    arguments = ["train", "--timings", str(database), "--arch", "gfx906", "--out", str(out), "--epochs", "12"]
    assert main([*arguments, "--teachers", "0"]) == 0
    return out
