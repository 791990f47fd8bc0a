"""Compiled kernels use no stack memory and spill no registers, and stay within limits of registers and shared memory.

Tests take one kernel of each file and, in minutes, all of them for each maker's newest GPU.
"""

import os
import subprocess
from pathlib import Path

import code_objects
import pytest
from code_objects import find_llvm, resources
from compiled import ROOT, code_object, compile_kernels, one_kernel
from marks import slow

MOST_REGISTERS = {"gfx": 256, "sm_": 255}  # per thread; AMD's kernels with more run one wave at a time
MOST_SHARED = {"gfx": 64 << 10, "sm_": 49 << 10}  # bytes, static; NVIDIA's limit is 48 KiB and the driver's reserve
FEWER_REGISTERS: dict[str, int] = {}  # file: limit for its occupancy
UNFINISHED = {  # file.architecture: known failures of test_registers. Remove the line with the fix
    f"{file}.{arch}": "scalar registers spill into lanes of vector ones; wide filters take too many"
    for file in ("depthwise/depthwise", "depthwise/depthwise_planes")
    for arch in ("gfx908", "gfx90a", "gfx942")
}
# File of kernels that multiply matrices (except those that add up partial sums): prefix of the AMD opcode.
MATRIX_OPCODES = {"gemm/implicit_gemm": "v_mfma"}

pytestmark = pytest.mark.nightly
# In CI (CI=1) missing tools are a failure: .ci/run installs them.
needs_llvm = pytest.mark.skipif(
    find_llvm("llvm-readelf") is None and not os.environ.get("CI"),
    reason="no llvm-readelf: apt install llvm-19",
)
needs_clang = pytest.mark.skipif(
    compile_kernels.find_clang() is None and not os.environ.get("CI"),
    reason="no compiler for AMD's GPUs: apt install clang-19 lld-19",
)
needs_nvcc = pytest.mark.skipif(
    compile_kernels.find_nvcc() is None and not os.environ.get("CI"), reason="nvcc is missing"
)


def check_memory(path: Path) -> None:
    for name, used in resources(path).items():
        assert used.stack_bytes == 0, f"{name} keeps {used.stack_bytes} bytes a thread in memory"
        most = MOST_SHARED[path.name.split(".")[1][:3]]
        assert used.shared_bytes <= most, f"{name} takes {used.shared_bytes} bytes of shared memory"


def check_registers(path: Path, file: str | None = None) -> None:
    most = min(MOST_REGISTERS[path.name.split(".")[1][:3]], FEWER_REGISTERS.get(file, 512))
    wrong = [f"{name} spills {used.spills} registers" for name, used in resources(path).items() if used.spills]
    wrong += [f"{name} takes {used.registers}" for name, used in resources(path).items() if used.registers > most]
    assert not wrong, "\n".join(wrong)


def compiled(file: str, arch: str, part: str = "all") -> Path:
    compiler = compile_kernels.find_clang() if arch.startswith("gfx") else compile_kernels.find_nvcc()
    source = ROOT / f"csrc/hip/{file}.hip" if part == "all" else one_kernel(file, ONE[file])
    return code_object(compiler, arch, source)


def for_architectures(file: str) -> list:
    """A file's parameters: its name and each architecture that it is compiled for."""
    return [
        pytest.param(file, arch, marks=[needs_clang, needs_llvm] if arch.startswith("gfx") else [needs_nvcc])
        for arch in compile_kernels.ARCHITECTURES
        if compile_kernels.is_packaged(Path(file).name, arch)
    ]


# Expansion of X for one kernel of each file.
ONE = {
    "copy/casts": "fp32, bf16",
    "depthwise/depthwise": "weight_grad, bf16, 7, 2, 2, 7",
    "depthwise/depthwise_planes": "forward, bf16, 3, 1, 4, 8",
    "embedding/add_tables": "bf16",
    "embedding/embedding": "bf16, int64, 8",
    "embedding/few_rows": "bf16, int64",
    "embedding/more_rows": "bf16, int64",
    "gemm/implicit_gemm": "forward, bf16, general, 128, 128, 2, 2, 3",
    "pooling/max_pool": "backward, bf16, 8",
    "packed_gemm/pack": "pack, bf16, 4",
    "pointwise/scale": "bf16, fp32, 8",
    "segment_reduce/segments": "bf16, 8",
    "segment_reduce/sorted_rows": "row_numbers, int64",
    "depthwise/tma_depthwise": "forward, bf16, 3, 1",
    "tma_gemm/tma_gemm": "forward, bf16, 128, 128, 6, cooperative",
    "tma_gemm/tma_windows": "input_grad, bf16, 128, 128, 6, cooperative",
    "copy/transpose": "16, 8",
}
FILES = [f"{file.parent.name}/{file.stem}" for file in compile_kernels.kernels()]
FILES = [file for file in FILES if for_architectures(file)]
ALL = [each for file in FILES for each in for_architectures(file)]


# The scope is the module, so that tests of one code object follow each other, and only one process compiles it.
parts = pytest.mark.parametrize("part", ["one kernel", *slow("all")], scope="module")
# All kernels of a file take minutes to compile.
of_files = pytest.mark.parametrize(
    "file, arch, part",
    [
        *(pytest.param(*each.values, "one kernel", marks=each.marks) for each in ALL),
        *(
            pytest.param(*each.values, "all", marks=[*each.marks, pytest.mark.slow])
            for each in ALL
            if each.values[1] in ("gfx942", "sm_90a")
        ),
    ],
    scope="module",
)


@of_files
def test_memory(file, arch, part):
    check_memory(compiled(file, arch, part))


@of_files
def test_registers(file, arch, part, request):
    if why := UNFINISHED.get(f"{file}.{arch}"):
        request.applymarker(pytest.mark.xfail(reason=why, strict=True, raises=AssertionError))
    check_registers(compiled(file, arch, part), file)


@parts
@pytest.mark.parametrize("file", MATRIX_OPCODES)
@pytest.mark.parametrize("arch", [arch for arch in compile_kernels.ARCHITECTURES if arch.startswith("gfx")])
@needs_clang
@needs_llvm
def test_matrix_instructions_are_there(file, arch, part):
    for name, opcodes in code_objects.amd_opcodes(compiled(file, arch, part)).items():
        assert "_finish_" in name or any(opcode.startswith(MATRIX_OPCODES[file]) for opcode in opcodes), name


KERNELS = """
#include "types.h"
typedef _Float16 half4 __attribute__((ext_vector_type(4)));
typedef float float16 __attribute__((ext_vector_type(16)));
namespace reformer {
KERNEL(256) spills(float* x, int n) {
  float a[300];
  for (int i = 0; i < 300; ++i) a[i] = x[i * 256 + thread_id()];
  for (int i = 0; i < n; ++i) a[(i * 7 + n) % 300] += a[i % 300];
  for (int i = 0; i < 300; ++i) x[i * 256 + thread_id()] = a[i];
}
KERNEL(256) fine(float* x) {
  SHARED float shared[300];
  shared[thread_id()] = x[thread_id()];
  barrier();
  x[thread_id()] = shared[thread_id() / 2];
}
#ifdef __gfx90a__
KERNEL(64) multiplies(half4* x, float16* y) {
  y[thread_id()] = __builtin_amdgcn_mfma_f32_32x32x8f16(x[thread_id()], x[thread_id() + 64], y[thread_id()], 0, 0, 0);
}
#endif
}
"""


def planted(arch: str, folder: Path) -> Path:
    amd = arch.startswith("gfx")
    source, result = folder / "k.hip", folder / f"k.{arch}.{'co' if amd else 'cubin'}"
    text = KERNELS if amd else "\n".join(line for line in KERNELS.splitlines() if not line.startswith("typedef"))
    source.write_text(text)
    compiler = compile_kernels.find_clang() if amd else compile_kernels.find_nvcc()
    command = compile_kernels.command(compiler, arch, source, result)
    subprocess.run([*command, f"-I{ROOT / 'csrc/hip/device'}"], check=True, capture_output=True)
    return result


@pytest.mark.parametrize(
    "arch",
    [
        *(pytest.param(arch, marks=[needs_clang, needs_llvm]) for arch in ("gfx908", "gfx90a", "gfx942")),
        *(pytest.param(arch, marks=needs_nvcc) for arch in ("sm_80", "sm_90a")),
    ],
)
def test_the_gate_sees_what_it_looks_for(arch, tmp_path):
    path = planted(arch, tmp_path)
    used = resources(path)
    assert used["fine"].stack_bytes == used["fine"].spills == 0
    assert used["fine"].shared_bytes in (1200, 1200 + 1024)  # NVIDIA's driver reserves 1 KiB from sm_90 on
    assert 1 < used["fine"].registers < 32
    assert used["spills"].stack_bytes >= 1200
    check_registers(path)
    with pytest.raises(AssertionError, match="spills keeps 1[0-9]{3} bytes a thread in memory"):
        check_memory(path)


@needs_clang
@needs_llvm
def test_opcodes(tmp_path):
    opcodes = code_objects.amd_opcodes(planted("gfx90a", tmp_path))
    assert any(opcode.startswith("v_mfma") for opcode in opcodes["multiplies"])
    assert "s_barrier" in opcodes["fine"] and not any(opcode.startswith("v_mfma") for opcode in opcodes["fine"])
