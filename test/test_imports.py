"""Cost of importing the package: the compiler, slower to import than all of torch, waits for its first use."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPILERS = {"torch._dynamo", "torch._inductor", "torch.fx.experimental", "torch.distributed.tensor", "sympy", "triton"}
HELP = """
import contextlib, io
from torch_reformer.__main__ import _parser, main
commands = next(action.choices for action in _parser()._actions if isinstance(action.choices, dict))
for arguments in ["--help"], ["info"], *([command, "--help"] for command in commands):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main(arguments)
    assert shown.getvalue(), arguments
"""


def modules_after(code: str) -> set[str]:
    """All modules in a fresh process after this code."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def of_torch() -> set[str]:
    return modules_after("import torch")


@pytest.mark.parametrize("code", ["import torch_reformer", HELP], ids=["import", "help"])
def test_no_compiler_is_imported(of_torch, code):
    added = modules_after(code) - of_torch
    assert not {name for name in added if any(f"{name}.".startswith(f"{each}.") for each in COMPILERS)}
    assert len({name for name in added if not name.startswith("torch_reformer")}) < 30


def test_compiler_is_imported_with_the_backend(of_torch):
    assert "torch._dynamo" in modules_after("import torch_reformer.compiler.backend") - of_torch
