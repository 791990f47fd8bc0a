"""PyTorch's own databases of operators and modules, for slow tests, with the check of known differences from eager."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest
import torch
from known_differences import KNOWN

of_known_version = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="other versions of PyTorch have other samples and differences"
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def operators(config: pytest.Config) -> list:
    module = _imported(config, "common_methods_invocations")
    if module is None:
        return []
    module.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # it would seed while a graph is traced
    return module.op_db


def modules(config: pytest.Config) -> list:
    module = _imported(config, "common_modules")
    return module.module_db if module else []


def _imported(config: pytest.Config, name: str) -> ModuleType | None:
    """The module, or None if no slow tests run: the import takes seconds."""
    if config.option.markexpr == "not slow":
        return None
    module = importlib.import_module(f"torch.testing._internal.{name}")
    torch.backends.__allow_nonbracketed_mutation_flag = True  # that import forbids other tests to set flags
    return module


def few(values: list, most: int) -> list:
    """At most `most` of the values, evenly spread."""
    return values[:: -(-len(values) // most) or 1] if most else []


def assert_known(name: str, dtype: str, differences: list[str]) -> None:
    """Check that every difference is in the list of known ones, and that every listed one still exists."""
    known = [each for each in KNOWN if name in each.names and dtype in each.dtypes]
    left = [each for each in differences if not any(re.search(k.difference, each) for k in known)]
    strict = [entry for entry in known if not entry.by_chance]
    gone = [k.reason for k in strict if not any(re.search(k.difference, difference) for difference in differences)]
    assert not left, "\n".join(left)
    assert not gone, f"known_differences.py has {name}, which passes: {'; '.join(gone)}"
