"""Programs inside convolutions' kernels compile, use matrix instructions, and keep their values in registers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from code_objects import amd_opcodes, find_llvm, resources
from emulator import conv_programs, implicit_gemm, tma_gemm
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


# By a kernel of each kind, and one by that of 1x1, which has less to keep.
KINDS = [*((name, 3) for name in PROGRAMS), ("normalise", 1)]
REDUCING = {
    "moments": _programs.moments(frozenset()),
    "moments with a bias": _programs.moments(frozenset(["bias"])),
    "sum": ep.Program(ep.store(ep.relu(BIASED)), ep.sum(BIASED * ep.full("residual"))),
}


def tensor(kind):
    if kind == "full":
        return torch.empty(2, 24, 4, 4, dtype=torch.bfloat16)
    return torch.empty(1, dtype=torch.int64 if kind == "random" else torch.float32)


def source(with_program, name, filter, tile, type_name="bf16"):
    program, half = (PROGRAMS | REDUCING)[name], filter // 2
    problem = Problem("forward", type_name, 2, 8, 4, 4, 24, filter, filter, pad=(half, half))
    kernel = with_program(problem, tile)
    return conv_programs.source(problem, kernel, program, [tensor(kind) for kind in program.inputs.values()])


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def check_hopper(file, instruction, folder):
    nvcc = need(compile_kernels.find_nvcc(), "nvcc")
    text, code = folder / "kernel.ptx", folder / "kernel.sm_90a.cubin"
    run(nvcc, "-x", "cu", "-std=c++17", "-O3", "-arch=sm_90a", "-ptx", file, "-o", text)
    run(nvcc, "-arch=sm_90a", "-cubin", text, "-o", code)
    assert instruction in text.read_text()
    (used,) = resources(code).values()
    assert not used.stack_bytes and not used.spills


# The tiles with the most sums a thread, and those of the smallest blocks.
@pytest.mark.parametrize("tile", ["128x256_4", "128x192_4", "128x128_6", "64x64_3"])
@pytest.mark.parametrize("name, filter", [*KINDS, *((name, filter) for name in REDUCING for filter in (1, 3))])
def test_tma_gemm(name, filter, tile, tmp_path):
    check_hopper(source(tma_gemm.with_program, name, filter, tile), "wgmma.mma_async", tmp_path)


@pytest.mark.parametrize(
    "type_name, tile, instruction",
    [
        *(("bf16", tile, "wgmma.mma_async") for tile in ("128x256_8x1_4", "128x128_8x1_3", "64x64_4x1_4")),
        ("bf16", "64x32_2x2_4", "mma.sync"),
        *(("fp32", tile, "mma.sync") for tile in ("128x128_2x2_3", "64x64_2x2_4")),
    ],
)
@pytest.mark.parametrize("name, filter", KINDS)
def test_implicit_gemm(name, filter, type_name, tile, instruction, tmp_path):
    check_hopper(source(implicit_gemm.with_program, name, filter, tile, type_name), instruction, tmp_path)


@pytest.mark.parametrize(
    "type_name, tile", [("bf16", "128x128_2x2_3"), ("bf16", "64x64_2x2_4"), ("fp32", "128x64_2x2_3")]
)
@pytest.mark.parametrize("name, filter", KINDS)
@pytest.mark.parametrize("architecture", ["gfx908", "gfx942"])
def test_implicit_gemm_of_amd(architecture, name, filter, type_name, tile, tmp_path):
    clang = need(compile_kernels.find_clang(), "a compiler for AMD's GPUs (apt install clang-19 lld-19)")
    need(find_llvm("llvm-readelf") and find_llvm("llvm-objdump"), "llvm-readelf or llvm-objdump (apt install llvm-19)")
    file, code = source(implicit_gemm.with_program, name, filter, tile, type_name), tmp_path / f"k.{architecture}.co"
    run(*compile_kernels.command(clang, architecture, file, code))
    (opcodes,) = amd_opcodes(code).values()
    assert any("mfma" in opcode for opcode in opcodes)
    (used,) = resources(code).values()
    assert not used.stack_bytes and not used.spills
