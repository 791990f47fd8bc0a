"""Marks for tests: parameters that only `make test-all` runs, and requirements of tests."""

import importlib.util
import os
from collections.abc import Container

import pytest
import torch

from torch_reformer.runtime import aten

# CI builds the library, so there its absence is a failure.
needs_aten = pytest.mark.skipif(aten.library is None and not os.environ.get("CI"), reason=aten.missing)
# pyproject.toml's group of developers has both.
needs_solver = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("highspy", "scipy"))) and not os.environ.get("CI"),
    reason="neither highspy nor SciPy is installed",
)
# Libraries that stand in for a GPU's backend: a torch that is built for GPUs has its own.
needs_cpu_build = pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch is built for GPUs")


def slow(*values: object, each_night: Container = ()) -> list:
    """Parameters of slow tests. Those in `each_night` are left to `make test-all`."""
    nightly = [pytest.mark.slow, pytest.mark.nightly]
    return [pytest.param(value, marks=nightly if value in each_night else pytest.mark.slow) for value in values]


def require(package: str, group: str) -> None:
    """Skip the test if another package, of this group of pyproject.toml, is missing. In CI, where `make test-all`
    installs it, go on, so that the test fails."""
    if importlib.util.find_spec(package) is None and not os.environ.get("CI"):
        pytest.skip(f"{package} is not installed: pip install --group {group}")
