"""What every test gets: a known seed, and settings and thread counts put back."""

import os

# Threads that wait for work sleep: tests with more threads than there are free cores would take ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

import torch_reformer  # noqa: E402
from torch_reformer import _native  # noqa: E402

# A failure prints the example and a line that reproduces it; `pytest --hypothesis-seed=N` repeats a whole run. In CI
# the examples are the same each time: it judges a change, and looking for what else may fail is for people.
hypothesis.settings.register_profile("reformer", deadline=None, print_blob=True, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("reformer")

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param


def _weights() -> dict | None:
    selector = _native.selector("cpu")
    return selector and selector["tensors"]


@pytest.fixture(autouse=True)
def _fresh_process_state():
    """Tests start from one seed and leave no trace: neither random state, nor threads, nor settings, nor weights."""
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
    """No weights for the CPU: the static rule chooses. A selector that the test sets is removed after it."""
    before = _native.selector("cpu")
    _native.remove_selector("cpu")
    yield
    _native.remove_selector("cpu")
    if before is not None:
        _native.set_selector("cpu", **before)
