"""Kernels compile for every GPU that is supported, use its matrix instructions, and keep their data in registers."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = ["tile_gemm", "primitives"]

AMD_FLAGS = "-x hip -std=c++17 -O3 -Wall -Werror --offload-device-only --no-gpu-bundle-output".split()
AMD_FLAGS += ["-nogpuinc", "-nogpulib", "-mcode-object-version=5", f"-I{ROOT / 'csrc/hip/device'}"]
NVIDIA_FLAGS = ["-x", "cu", "-std=c++17", "-O3", "-Werror=all-warnings", f"-I{ROOT / 'csrc/hip/device'}"]

# What the tiles of tile_gemm.hip have to be made of, for fp16, bf16 and fp32 or tf32.
AMD_MATRIX = {
    "gfx908": ["32x32x8f16", "16x16x16f16", "32x32x4bf16", "16x16x8bf16", "32x32x2f32", "16x16x4f32"],
    "gfx90a": ["32x32x8f16", "16x16x16f16", "32x32x8bf16_1k", "16x16x16bf16_1k", "32x32x2f32", "16x16x4f32"],
    "gfx942": ["32x32x8_f16", "16x16x16_f16", "32x32x8_bf16", "16x16x16_bf16", "32x32x2_f32", "16x16x4_f32"],
}
NVIDIA_MATRIX = ["m16n8k16.row.col.f32.f16", "m16n8k16.row.col.f32.bf16", "m16n8k8.row.col.f32.tf32"]


def tool(name: str, package: str) -> str:
    """The path of a program; without it the test is skipped, but in CI it fails."""
    path = shutil.which(name)
    if path is None and os.environ.get("CI"):
        pytest.fail(f"{name} is missing, and CI has to compile for GPUs: install {package}")
    if path is None:
        pytest.skip(f"{name} is missing: install {package} to compile for GPUs")
    return path


def run(*command) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("architecture", AMD_MATRIX)
def test_amd(architecture, file, tmp_path):
    compiler, inspector = tool("clang++-19", "clang-19 and lld-19"), tool("llvm-readelf-19", "llvm-19")
    disassembler = tool("llvm-objdump-19", "llvm-19")
    code = tmp_path / "kernels.co"
    run(compiler, *AMD_FLAGS, f"--offload-arch={architecture}", "-c", ROOT / f"test/hip/{file}.hip", "-o", code)

    notes = run(inspector, "--notes", code)
    for unwanted in ("private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count"):
        found = re.findall(rf"\.{unwanted}: +(\d+)", notes)
        assert found and set(found) == {"0"}, f"{unwanted}: {found}"

    text = run(disassembler, "-d", f"--mcpu={architecture}", code)
    assert not re.findall(r"\b(?:flat|scratch)_(?:load|store)\w+", text), "an address whose kind of memory is not known"
    if file == "tile_gemm":
        found = set(re.findall(r"v_mfma_f32_(\w+)", text))
        assert found == set(AMD_MATRIX[architecture])
        assert {"ds_read_b128", "ds_read_b64", "ds_write_b128"} <= set(re.findall(r"ds_\w+", text))
    else:
        assert "ds_bpermute_b32" in text


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_nvidia(architecture, file, tmp_path):
    compiler = tool("nvcc", "NVIDIA's CUDA compiler")
    source, code, text = ROOT / f"test/hip/{file}.hip", tmp_path / "kernels.cubin", tmp_path / "kernels.ptx"
    used = run(compiler, *NVIDIA_FLAGS, f"-arch={architecture}", "--resource-usage", "-cubin", source, "-o", code)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", used)
    assert frames and set(frames) == {("0", "0", "0")}, used

    run(compiler, *NVIDIA_FLAGS, f"-arch={architecture}", "-ptx", source, "-o", text)
    ptx = text.read_text()
    if file == "tile_gemm":
        found = set(re.findall(r"mma\.sync\.aligned\.(m\w+\.row\.col\.f32\.\w+)", ptx))
        assert found == set(NVIDIA_MATRIX)
        assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in ptx
        assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in ptx
    else:
        assert "shfl.sync.bfly.b32" in ptx and "shfl.sync.down.b32" in ptx
    assert "cp.async.cg.shared.global" in ptx and "cp.async.wait_group" in ptx
