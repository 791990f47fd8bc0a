"""The implicit GEMM solvers of GPUs on the CPU, host side and kernels, against PyTorch."""

import pytest
from marks import slow

import emulator
from emulator import solvers
from torch_reformer import ConvProblem
from torch_reformer.runtime import native

pytestmark = emulator.needed
SOLVERS = [name for name in native.solver_names() if name.startswith("gpu_gemm_")]

# n, c, h, w, k, r, s, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, groups
PROBLEMS = {
    "1x1": (2, 72, 9, 9, 88, 1, 1, 0, 0, 1, 1),
    "1x1, many pixels": (1, 16, 40, 41, 24, 1, 1, 0, 0, 1, 1),
    "3x3, stride 2": (2, 40, 9, 8, 24, 3, 3, 1, 1, 2, 2),
    "3x3, groups": (1, 32, 7, 9, 64, 3, 3, 1, 0, 1, 1, 1, 1, 2),
    "deep": (1, 136, 4, 5, 8, 3, 3, 1, 1, 1, 1),
}


@emulator.without_sanitizers
@pytest.mark.parametrize("name", ["3x3, stride 2", *slow(*(name for name in PROBLEMS if name != "3x3, stride 2"))])
@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("solver", ["gpu_gemm_64x32", *slow("gpu_gemm_32x32")])
def test_small_tiles(solver, direction, name):
    problem = ConvProblem(*PROBLEMS[name], direction=direction, dtype="BF16", layout="NHWC", bias=direction == "F")
    for warp, seed in ((32, 0), (64, 1)):
        solvers.check(solver, problem, warp=warp, seed=seed)


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("dtype", ["FP16", "FP32"])
@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "gpu_gemm_128x256"])
def test_every_solver(solver, direction, dtype):
    sizes = PROBLEMS["3x3, stride 2" if dtype == "FP16" else "1x1"]
    problem = ConvProblem(*sizes, direction=direction, dtype=dtype, layout="NHWC")
    # In fp32 the first would need more registers than there are; in place of the second there are 64x32 and 32x32.
    missing = {("gpu_gemm_128x128", "W", "FP32"), *(("gpu_gemm_128x32", "W", dtype) for dtype in ("FP16", "FP32"))}
    if (solver, direction, dtype) in missing:
        with pytest.raises(ValueError, match="it is not compiled for this data type and architecture"):
            solvers.check(solver, problem)
    else:
        solvers.check(solver, problem)
