"""Kernels compile for every supported GPU, use its matrix instructions, and keep their data in registers."""

import os
import re
from pathlib import Path

import pytest
from code_objects import amd_opcodes, find_llvm, resources
from compiled import ROOT, code_object, compile_kernels, made, one_kernel
from marks import slow

DEVICE = f"-I{ROOT / 'csrc/hip/device'}"  # for the files of test/hip

FILES = ["tile_gemm", "primitives"]

# Instructions that the tiles of tile_gemm.hip must use for fp16, bf16, and fp32 or tf32.
AMD_MATRIX = {
    "gfx908": ["32x32x8f16", "16x16x16f16", "32x32x4bf16", "16x16x8bf16", "32x32x2f32", "16x16x4f32"],
    "gfx90a": ["32x32x8f16", "16x16x16f16", "32x32x8bf16_1k", "16x16x16bf16_1k", "32x32x2f32", "16x16x4f32"],
    "gfx942": ["32x32x8_f16", "16x16x16_f16", "32x32x8_bf16", "16x16x16_bf16", "32x32x2_f32", "16x16x4_f32"],
}
NVIDIA_MATRIX = ["m16n8k16.row.col.f32.f16", "m16n8k16.row.col.f32.bf16", "m16n8k8.row.col.f32.tf32"]


def need(program: str | None, what: str) -> str:
    """Return a program's path. Without it the test is skipped, in CI it fails."""
    if program is None and os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI has to compile for GPUs")
    if program is None:
        pytest.skip(f"{what} is missing")
    return program


def ptx_of(source: Path, architecture: str, *flags: object) -> Path:
    nvcc = need(compile_kernels.find_nvcc(), "nvcc")
    command = [nvcc, "-x", "cu", "-std=c++17", "-O3", f"-arch={architecture}", "-ptx", *flags]
    return made(f"{source.stem}.{architecture}.ptx", command, source)


def check_generated(architecture: str, file: Path, kernels: set[str], stack_bytes: int = 0) -> None:
    """Check that a generated file has these kernels, compiles without warnings, and keeps everything in registers, but
    for arrays of at most so many bytes."""
    amd = architecture.startswith("gfx")
    compiler = need(compile_kernels.find_clang() if amd else compile_kernels.find_nvcc(), "a compiler for this GPU")
    if amd:
        need(find_llvm("llvm-readelf"), "llvm-readelf (apt install llvm-19)")
    used = resources(code_object(compiler, architecture, file))
    assert used.keys() == kernels
    assert not [name for name in used if used[name].stack_bytes > stack_bytes or used[name].spills]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("architecture", ["gfx90a", *slow("gfx908", "gfx942")])
def test_amd(architecture, file):
    compiler = need(compile_kernels.find_clang(), "a compiler for AMD's GPUs (apt install clang-19 lld-19)")
    need(find_llvm("llvm-readelf") and find_llvm("llvm-objdump"), "llvm-readelf or llvm-objdump (apt install llvm-19)")
    code = code_object(compiler, architecture, ROOT / f"test/hip/{file}.hip", DEVICE)
    used = resources(code)
    assert used and {name for name in used if used[name].stack_bytes or used[name].spills} == set()

    opcodes = set().union(*amd_opcodes(code).values())
    assert not [name for name in opcodes if re.match(r"(flat|scratch)_", name)], "memory of a kind that is not known"
    if file == "tile_gemm":
        assert {name for name in opcodes if "mfma" in name} == {f"v_mfma_f32_{x}" for x in AMD_MATRIX[architecture]}
        assert {"ds_read_b128", "ds_read_b64", "ds_write_b128"} <= opcodes
    else:
        assert "ds_bpermute_b32" in opcodes


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("architecture", ["sm_80", *slow("sm_90a")])
def test_nvidia(architecture, file):
    compiler = need(compile_kernels.find_nvcc(), "nvcc")
    source = ROOT / f"test/hip/{file}.hip"
    used = resources(code_object(compiler, architecture, source, DEVICE))
    assert used and {name for name in used if used[name].stack_bytes} == set()

    ptx = ptx_of(source, architecture, DEVICE).read_text()
    if file == "tile_gemm":
        instructions = set(re.findall(r"mma\.sync\.aligned\.(m\w+\.row\.col\.f32\.\w+)", ptx))
        assert instructions == set(NVIDIA_MATRIX)
        assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in ptx
        assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in ptx
    else:
        assert "shfl.sync.bfly.b32" in ptx and "shfl.sync.down.b32" in ptx
    assert "cp.async.cg.shared.global" in ptx and "cp.async.wait_group" in ptx


# A kernel's file, the expansion of X for one of its kernels, and instructions that it must use.
HOPPER = {
    "tma_gemm/tma_gemm": (
        "forward, bf16, 128, 128, 6, cooperative",
        ["wgmma.mma_async.sync.aligned.m64n128k16", ".multicast::cluster"],
    ),
    "tma_gemm/tma_windows": (
        "input_grad, bf16, 128, 128, 6, cooperative",
        [
            "wgmma.mma_async.sync.aligned.m64n128k16",
            "global.im2col.mbarrier",
            ".im2col_no_offs.",
            ".multicast::cluster",
        ],
    ),
    "depthwise/tma_depthwise": ("forward, bf16, 3, 1", ["mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4"]),
}
OF_BOTH = ["cp.async.bulk.tensor", "mbarrier.try_wait", "stmatrix.sync", "griddepcontrol.wait"]


@pytest.mark.parametrize("file", HOPPER)
def test_hopper(file):
    entry, instructions = HOPPER[file]
    ptx = ptx_of(one_kernel(file, entry), "sm_90a").read_text()
    assert [instruction for instruction in [*instructions, *OF_BOTH] if instruction not in ptx] == []
