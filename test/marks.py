"""Which parameters of a test wait for `make test-all`, and what tests need."""

import os

import pytest

from torch_reformer.runtime import aten

# In CI, which builds it, its absence is a failure.
needs_aten = pytest.mark.skipif(aten.library is None and not os.environ.get("CI"), reason=aten.missing)


def slow(*values: object) -> list:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
