"""Programs inside the TMA GEMM kernels compile for Hopper, multiply by wgmma, and keep their values in registers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from code_objects import resources
from emulator import tma_programs
from emulator.plans import Problem
from test_mma_code import need

from torch_reformer import _programs
from torch_reformer import epilogue as ep

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "csrc" / "hip"))
import compile_kernels  # noqa: E402

BIASED = ep.acc() + ep.channel("bias")
PROGRAMS = {
    "residual, silu": ep.Program(ep.store(ep.silu(BIASED + ep.full("residual")))),
    "gelu and what it is of": ep.Program(ep.store(BIASED), ep.store(ep.gelu(BIASED))),
    "dropout": ep.Program(ep.store(ep.select(ep.random("key") < 0.1, 0, ep.relu(BIASED)))),
    "normalise": _programs.normalise(frozenset(["mean", "squares", "scale", "shift", "residual"]), "silu", 1e-5),
}


def tensor(kind):
    if kind == "full":
        return torch.empty(2, 24, 4, 4, dtype=torch.bfloat16)
    return torch.empty(1, dtype=torch.int64 if kind == "random" else torch.float32)


# The tiles with the most sums a thread, and those of the smallest blocks.
@pytest.mark.parametrize("tile", ["128x256_4", "128x192_4", "128x128_6", "64x64_3"])
@pytest.mark.parametrize("filter", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiles(name, filter, tile, tmp_path):
    nvcc = need(compile_kernels.find_nvcc(), "nvcc")
    program = PROGRAMS[name]
    problem = Problem("forward", "bf16", 2, 8, 4, 4, 24, filter, filter, pad=(filter // 2, filter // 2))
    file = tma_programs.source(problem, tile, program, [tensor(kind) for kind in program.inputs.values()])
    text, code = tmp_path / "kernel.ptx", tmp_path / "kernel.sm_90a.cubin"
    for command in (
        [nvcc, "-x", "cu", "-std=c++17", "-O3", "-arch=sm_90a", "-ptx", file, "-o", text],
        [nvcc, "-arch=sm_90a", "-cubin", text, "-o", code],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
    assert "wgmma.mma_async" in text.read_text()
    (used,) = resources(code).values()
    assert not used.stack_bytes and not used.spills
