"""Kernels compile for every GPU that is supported, use its matrix instructions, and keep their data in registers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from code_objects import amd_opcodes, find_llvm, resources

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "csrc" / "hip"))
import compile_kernels  # noqa: E402

FILES = ["tile_gemm", "primitives"]

# What the tiles of tile_gemm.hip have to be made of, for fp16, bf16 and fp32 or tf32.
AMD_MATRIX = {
    "gfx908": ["32x32x8f16", "16x16x16f16", "32x32x4bf16", "16x16x8bf16", "32x32x2f32", "16x16x4f32"],
    "gfx90a": ["32x32x8f16", "16x16x16f16", "32x32x8bf16_1k", "16x16x16bf16_1k", "32x32x2f32", "16x16x4f32"],
    "gfx942": ["32x32x8_f16", "16x16x16_f16", "32x32x8_bf16", "16x16x16_bf16", "32x32x2_f32", "16x16x4_f32"],
}
NVIDIA_MATRIX = ["m16n8k16.row.col.f32.f16", "m16n8k16.row.col.f32.bf16", "m16n8k8.row.col.f32.tf32"]


def need(found: str | None, what: str) -> str:
    """A program's path; without it the test is skipped, but in CI it fails."""
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI has to compile for GPUs")
    if found is None:
        pytest.skip(f"{what} is missing")
    return found


def compiled(compiler: str, architecture: str, file: str, result: Path) -> Path:
    command = compile_kernels.command(compiler, architecture, ROOT / f"test/hip/{file}.hip", result)
    done = subprocess.run([*command, f"-I{ROOT / 'csrc/hip/device'}"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return result


def check_generated(architecture: str, file: Path, folder: Path, kernels: set[str]) -> None:
    """A generated file has these kernels, compiles without a word, and keeps everything in registers."""
    amd = architecture.startswith("gfx")
    compiler = need(compile_kernels.find_clang() if amd else compile_kernels.find_nvcc(), "a compiler for this GPU")
    if amd:
        need(find_llvm("llvm-readelf"), "llvm-readelf (apt install llvm-19)")
    result = folder / f"{file.stem}.{architecture}.{'co' if amd else 'cubin'}"
    done = subprocess.run(compile_kernels.command(compiler, architecture, file, result), capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    used = resources(result)
    assert used.keys() == kernels
    assert not [name for name in used if used[name].stack_bytes or used[name].spills]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("architecture", AMD_MATRIX)
def test_amd(architecture, file, tmp_path):
    compiler = need(compile_kernels.find_clang(), "a compiler for AMD's GPUs (apt install clang-19 lld-19)")
    need(find_llvm("llvm-readelf") and find_llvm("llvm-objdump"), "llvm-readelf or llvm-objdump (apt install llvm-19)")
    code = compiled(compiler, architecture, file, tmp_path / f"{file}.{architecture}.co")
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
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_nvidia(architecture, file, tmp_path):
    compiler = need(compile_kernels.find_nvcc(), "nvcc")
    used = resources(compiled(compiler, architecture, file, tmp_path / f"{file}.{architecture}.cubin"))
    assert used and {name for name in used if used[name].stack_bytes} == set()

    source, text = ROOT / f"test/hip/{file}.hip", tmp_path / "kernels.ptx"
    flags = ["-x", "cu", "-std=c++17", "-O3", f"-arch={architecture}", f"-I{ROOT / 'csrc/hip/device'}"]
    subprocess.run([compiler, *flags, "-ptx", source, "-o", text], check=True)
    ptx = text.read_text()
    if file == "tile_gemm":
        found = set(re.findall(r"mma\.sync\.aligned\.(m\w+\.row\.col\.f32\.\w+)", ptx))
        assert found == set(NVIDIA_MATRIX)
        assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in ptx
        assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in ptx
    else:
        assert "shfl.sync.bfly.b32" in ptx and "shfl.sync.down.b32" in ptx
    assert "cp.async.cg.shared.global" in ptx and "cp.async.wait_group" in ptx


# A kernel's file, what X makes one of its kernels of, and instructions that it is made for.
HOPPER = {
    "tma_gemm": ("forward, bf16, 128, 128, 6", ["wgmma.mma_async.sync.aligned.m64n128k16", ".multicast::cluster"]),
    "tma_windows": (
        "input_grad, bf16, 128, 128, 6",
        [
            "wgmma.mma_async.sync.aligned.m64n128k16",
            "global.im2col.mbarrier",
            ".im2col_no_offs.",
            ".multicast::cluster",
        ],
    ),
    "tma_depthwise": ("forward, bf16, 3, 1", ["mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4"]),
}
OF_BOTH = ["cp.async.bulk.tensor", "mbarrier.try_wait", "stmatrix.sync", "griddepcontrol.wait"]


@pytest.mark.parametrize("file", HOPPER)
def test_hopper(file, tmp_path):
    entry, instructions = HOPPER[file]
    source, text = tmp_path / "kernel.cu", tmp_path / "kernel.ptx"
    source.write_text(f'#define REFORMER_ENTRY {entry}\n#include "{ROOT}/csrc/hip/kernels/{file}.hip"\n')
    command = [
        need(compile_kernels.find_nvcc(), "nvcc"),
        "-std=c++17",
        "-O3",
        "-arch=sm_90a",
        "-ptx",
        source,
        "-o",
        text,
    ]
    subprocess.run(command, check=True)
    ptx = text.read_text()
    assert [instruction for instruction in [*instructions, *OF_BOTH] if instruction not in ptx] == []
