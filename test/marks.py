"""Marks for tests: parameters that only `make test-all` runs, and requirements of tests."""

import os

import pytest

from torch_reformer.runtime import aten

# CI builds the library, so there its absence is a failure.
needs_aten = pytest.mark.skipif(aten.library is None and not os.environ.get("CI"), reason=aten.missing)


def slow(*values: object) -> list:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
