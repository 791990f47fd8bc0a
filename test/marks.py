"""Which parameters of a test wait for `make test-all`."""

import pytest


def slow(*values: object) -> list:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
