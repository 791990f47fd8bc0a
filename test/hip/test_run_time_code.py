"""Kernels compile at run time for the NVIDIA GPUs that no kernels are packaged for: one of each family, and one of each
kind of generated kernel. NVRTC compiles them, as on such a GPU."""

import os

import kernel_folders
import pytest
import torch
from code_objects import resources
from emulator import implicit_gemm
from emulator.stitching import planner
from emulator.stitching import source as plan_stitched
from placements import TURNED, with_five_dimensions, written_like
from test_code_objects import ONE
from test_conv_program_code import source as plan_convolution
from test_stitch_code import programs, tensor, turned_programs

from torch_reformer.runtime import gpu

HAS_NVRTC = kernel_folders.load_nvrtc()
pytestmark = [
    pytest.mark.skipif(not HAS_NVRTC and not os.environ.get("CI"), reason="NVRTC is not installed"),
    pytest.mark.parametrize("architecture", ["sm_86", "sm_89", "sm_100", "sm_120"]),
]


# Registers that spill are no failure: on Blackwell few do, in the kernels of embeddings and depthwise convolutions.
@pytest.fixture
def check(architecture, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_REFORMER_CACHE_DIR", str(tmp_path / "cache"))

    def compile_and_check(file, arguments, text="", name="test"):
        path = tmp_path / f"code.{architecture}.cubin"
        path.write_bytes(gpu.compile_entry(gpu.Entry(file, name, arguments, text), architecture).code)
        assert resources(path)

    return compile_and_check


@pytest.mark.parametrize("file", [file for file in ONE if "/tma_" not in file])
def test_kernel_of_each_family(check, file):
    check(file, ONE[file])


@pytest.mark.parametrize(
    "file, name", [("stitch", "activations"), ("stitch_rows", "softmax"), ("stitch_tiles", "many")]
)
def test_generated_kernel(check, file, name):
    size = (2, 320, 8, 8)
    acc = torch.empty(size, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    transposed = with_five_dimensions(written_like(TURNED["turned"](size), torch.bfloat16))
    tested = turned_programs()[name][0] if file == "stitch_tiles" else programs()[name]
    full = transposed if file == "stitch_tiles" else acc
    tensors = [full if kind == "full" else tensor(kind, size) for kind in tested.inputs.values()]
    plan_stitched(tested, acc, tensors, into={0: transposed} if file == "stitch_tiles" else None)
    text, _, finish = planner().source().decode().partition("REFORMER_STITCH_FINISH")
    check(f"pointwise/{file}", "0", text, "stitch_test")
    if file == "stitch":
        check("pointwise/stitch", "0", text + "REFORMER_STITCH_FINISH" + finish, "stitch_test_finish")


def test_convolution_with_a_program(check):
    plan_convolution(implicit_gemm.with_program, "residual, silu", 3, "128x64_2x2_3")
    started = implicit_gemm.planner()
    file, name, text = (read(0).decode() for read in (started.started_file, started.started_name, started.started_text))
    assert file == "gemm/implicit_gemm"
    check(file, "0", text, name)
