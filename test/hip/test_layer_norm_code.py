"""Layer norm's kernels compile for every GPU that is supported, and keep their values in registers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from code_objects import find_llvm, resources
from emulator import layer_norms
from test_mma_code import need

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "csrc" / "hip"))
import compile_kernels  # noqa: E402

HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize("input", [HALF, SINGLE], ids=["bf16", "fp32"])
@pytest.mark.parametrize("width", [96, 744, 767, 1024])
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_compiles(architecture, width, input, tmp_path):
    amd = architecture.startswith("gfx")
    compiler = need(compile_kernels.find_clang() if amd else compile_kernels.find_nvcc(), "a compiler for this GPU")
    if amd:
        need(find_llvm("llvm-readelf"), "llvm-readelf (apt install llvm-19)")
    for backward in (False, True):
        file = layer_norms.source(1000, width, (input, HALF, SINGLE), backward=backward)
        result = tmp_path / f"layer_norm.{architecture}.{'co' if amd else 'cubin'}"
        command = compile_kernels.command(compiler, architecture, file, result)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
        used = resources(result)
        assert used.keys() == {"layer_norm_test", *(["layer_norm_test_finish"] if backward else [])}
        assert not [name for name in used if used[name].stack_bytes or used[name].spills]
