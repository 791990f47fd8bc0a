"""What the compilers made of the kernels: no memory that stands in for registers, and no more of anything than allowed.

Over the code objects that `make build` put into the package, for AMD's and NVIDIA's GPUs.
"""

import os
import subprocess
import sys
from pathlib import Path

import code_objects
import pytest
from code_objects import find_llvm, resources

import torch_reformer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "csrc" / "hip"))
import compile_kernels  # noqa: E402

PACKAGED = sorted(
    path for path in (Path(torch_reformer.__file__).parent / "kernels").glob("*") if path.suffix in (".co", ".cubin")
)
MOST_REGISTERS = {"gfx": 256, "sm_": 255}  # of a thread; AMD's with more run one wave at a time
MOST_SHARED = {"gfx": 64 << 10, "sm_": 49 << 10}  # bytes, static; NVIDIA's 48 KiB and what the driver reserves
FEWER_REGISTERS: dict[str, int] = {}  # file: what its occupancy needs
UNFINISHED = {  # file.architecture: what test_registers still finds there. Whoever mends it has to remove the line
    f"{file}.{arch}": "scalar registers spill into lanes of vector ones; wide filters take too many"
    for file in ("depthwise", "depthwise_planes")
    for arch in ("gfx908", "gfx90a", "gfx942")
}
# File whose kernels multiply matrices, but for those that add up partial sums: the AMD opcode's beginning.
MATRIX_OPCODES = {"implicit_gemm": "v_mfma"}

# In CI (CI=1) what is missing is a failure: .ci/run installs it.
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


def check_registers(path: Path) -> None:
    stem, arch, _ = path.name.split(".")
    most = min(MOST_REGISTERS[arch[:3]], FEWER_REGISTERS.get(stem, 512))
    wrong = [f"{name} spills {used.spills} registers" for name, used in resources(path).items() if used.spills]
    wrong += [f"{name} takes {used.registers}" for name, used in resources(path).items() if used.registers > most]
    assert not wrong, "\n".join(wrong)


@needs_llvm
@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.name)
def test_memory(path):
    check_memory(path)


@needs_llvm
@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.name)
def test_registers(path, request):
    if why := UNFINISHED.get(".".join(path.name.split(".")[:2])):
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    check_registers(path)


@pytest.mark.parametrize(
    "arch",
    [
        pytest.param(arch, marks=needs_clang if arch.startswith("gfx") else needs_nvcc)
        for arch in compile_kernels.architectures()
    ],
)
@pytest.mark.parametrize("file", sorted(path.stem for path in (ROOT / "csrc/hip/kernels").glob("*.hip")))
def test_everything_is_packaged(file, arch):
    """What is not there, the tests above do not miss."""
    wanted = arch in compile_kernels.ONLY.get(file, (arch,))
    name = f"{file}.{arch}.{'co' if arch.startswith('gfx') else 'cubin'}"
    assert (name in {path.name for path in PACKAGED}) == wanted


@needs_llvm
@pytest.mark.parametrize("file", MATRIX_OPCODES)
def test_matrix_instructions_are_there(file):
    for path in PACKAGED:
        if path.name.startswith(f"{file}.gfx"):
            for name, opcodes in code_objects.amd_opcodes(path).items():
                assert "_finish_" in name or any(opcode.startswith(MATRIX_OPCODES[file]) for opcode in opcodes), (
                    f"{path.name}: {name}"
                )


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


def compiled(arch: str, folder: Path) -> Path:
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
    path = compiled(arch, tmp_path)
    found = resources(path)
    assert found["fine"].stack_bytes == found["fine"].spills == 0
    assert found["fine"].shared_bytes in (1200, 1200 + 1024)  # NVIDIA's driver reserves 1 KiB from sm_90 on
    assert 1 < found["fine"].registers < 32
    assert found["spills"].stack_bytes >= 1200
    check_registers(path)
    with pytest.raises(AssertionError, match="spills keeps 1[0-9]{3} bytes a thread in memory"):
        check_memory(path)


@needs_clang
@needs_llvm
def test_opcodes(tmp_path):
    found = code_objects.amd_opcodes(compiled("gfx90a", tmp_path))
    assert any(opcode.startswith("v_mfma") for opcode in found["multiplies"])
    assert "s_barrier" in found["fine"] and not any(opcode.startswith("v_mfma") for opcode in found["fine"])
