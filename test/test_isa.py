"""Kernels for older instruction sets than this machine's, chosen for a process by TORCH_REFORMER_ISA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_reformer.runtime import config, native

ROOT = Path(__file__).parent.parent
BEST = config.ISAS.index(native.device(None).split("-")[1])

# Within such a process there is nothing to compare with.
pytestmark = pytest.mark.skipif("TORCH_REFORMER_ISA" in os.environ, reason="TORCH_REFORMER_ISA is set")


def run(isa: str, *command: str, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **environment, "TORCH_REFORMER_ISA": isa}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("isa", config.ISAS[:BEST])
def test_every_solver_agrees_with_pytorch(isa):
    """Fewer examples of the fuzz test; the whole suite can be run with the variable set, too."""
    tests = ("test/test_conv2d_correctness.py", "-k", "every_solver or not_finite")
    done = run(isa, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, REFORMER_EXAMPLES="0.3")
    assert done.returncode == 0, done.stdout


def test_info_shows_it():
    done = run("plain", "-m", "torch_reformer", "info")
    assert done.returncode == 0, done.stderr
    assert "CPU             cpu-plain-" in done.stdout
    assert "  isa              plain        TORCH_REFORMER_ISA plain\n" in done.stdout


def test_explains_instruction_sets_that_are_not_there():
    """The choice is only computed: code for another instruction set may not run."""
    code = """
from torch_reformer import ConvProblem
from torch_reformer.selector import candidates
for layout in ("NCHW", "NHWC"):
    for found in candidates.candidates(ConvProblem(4, 70, 7, 7, 130, 3, 3, 1, 1, layout=layout), "cpu-avx512-2t"):
        print(found.name, found.reason, found.estimate_us, found.workspace_bytes)
"""
    lesser, best = run("plain", "-c", code), run(config.ISAS[BEST], "-c", code)
    assert lesser.stdout == best.stdout != "", lesser.stderr


def test_more_than_there_is_changes_nothing():
    code = "from torch_reformer.runtime import native; print(native.device(None).split('-')[1])"
    assert run("avx512", "-c", code).stdout == f"{config.ISAS[BEST]}\n"


def test_unknown_is_an_error():
    done = run("sse", "-c", "import torch_reformer")
    assert "ValueError: TORCH_REFORMER_ISA must be one of plain, avx2, avx512, got 'sse'" in done.stderr
