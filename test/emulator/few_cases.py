"""A plugin of pytest that runs some cases of each test: under sanitizers, kernels take several times as long."""

import itertools
import random

import pytest

MOST = 4  # of each test


@pytest.hookimpl(trylast=True)  # after the options -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = []
    for name, group in itertools.groupby(items, key=lambda item: item.nodeid.split("[")[0]):
        cases = list(group)
        kept += random.Random(name).sample(cases, min(MOST, len(cases)))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
