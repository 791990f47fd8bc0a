"""The packing solvers of GPUs on the CPU, host side and kernels, against PyTorch: narrow groups and first layers."""

import os

import pytest
import torch
from cases import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from marks import slow

import emulator
from emulator import host_side, solvers
from torch_reformer import ConvProblem
from torch_reformer.runtime import gpu, native
from torch_reformer.selector.candidates import candidates

pytestmark = emulator.needed
SOLVERS = [name for name in native.solver_names() if name.startswith("gpu_packed_gemm_")]
USUAL = "gpu_packed_gemm_64x64"
DTYPES = {"BF16": 8, "FP16": 8, "FP32": 4}  # elements per 16 bytes

# n, c, h, w, k, r, s, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w
STEMS = {
    "7x7, stride 2": (2, 3, 13, 14, 16, 7, 7, 3, 3, 2, 2),
    "odd width": (1, 3, 9, 15, 8, 7, 7, 3, 3, 2, 2),
    "even padding": (1, 3, 8, 9, 24, 5, 5, 2, 2, 2, 2),
    "even filter": (3, 3, 8, 10, 8, 4, 4, 1, 1, 2, 2),
    "patches": (2, 3, 8, 12, 16, 4, 4, 0, 0, 4, 4),
    "pixels left over": (2, 2, 6, 15, 8, 3, 2, 0, 0, 1, 4),
    "filter below stride": (1, 1, 5, 11, 8, 1, 1, 0, 0, 2, 4),
    "1 channel": (2, 1, 9, 7, 8, 3, 3, 1, 1, 2, 2),
    "2 channels": (1, 2, 7, 8, 8, 3, 5, 1, 2, 1, 2),
    "4 channels": (1, 4, 7, 9, 16, 3, 3, 0, 1, 2, 2),
    "stride 1": (2, 3, 7, 9, 16, 3, 3, 1, 1, 1, 1),
    "stride 3": (1, 3, 8, 11, 8, 5, 4, 2, 1, 3, 3),
    "dilation": (1, 3, 9, 12, 8, 3, 3, 2, 2, 2, 2, 2, 2),
    "dilation down": (1, 1, 9, 12, 8, 3, 3, 2, 1, 1, 2, 3, 1),
    "padding beyond the image": (1, 3, 2, 1, 8, 3, 2, 3, 2, 2, 4),
}
# ... and groups
GROUPS = {
    "4 channels a group": (2, 64, 7, 9, 64, 3, 3, 1, 1, 1, 1, 1, 1, 16),
    "8, stride 2": (1, 128, 9, 8, 128, 3, 3, 1, 1, 2, 2, 1, 1, 16),
    "1": (2, 40, 6, 7, 40, 3, 3, 1, 1, 1, 1, 1, 1, 40),
    "1, multiplier 2": (1, 24, 7, 6, 48, 3, 5, 1, 2, 1, 2, 1, 1, 24),
    "1, multiplier 3, dilation": (1, 16, 9, 9, 48, 3, 3, 2, 2, 1, 1, 2, 2, 16),
    "3, divided by 1.5": (3, 72, 5, 6, 48, 3, 3, 1, 0, 2, 1, 1, 1, 24),
    "6": (1, 48, 6, 5, 48, 3, 3, 1, 1, 1, 1, 1, 1, 8),
    "12": (1, 72, 5, 5, 24, 3, 1, 1, 0, 1, 1, 1, 1, 6),
    "24": (1, 96, 6, 6, 96, 3, 3, 1, 1, 2, 2, 1, 1, 4),
    "1x1": (2, 32, 5, 5, 64, 1, 1, 0, 0, 1, 1, 1, 1, 8),
    "wider than a tile": (1, 72, 4, 5, 72, 3, 3, 1, 1, 1, 1, 1, 1, 8),
}
ALL = STEMS | GROUPS
QUICK = ["7x7, stride 2", "patches", "1 channel", "2 channels", "dilation", "padding beyond the image"]
QUICK += ["4 channels a group", "8, stride 2", "1, multiplier 3, dilation", "3, divided by 1.5", "wider than a tile"]


def problem_of(sizes, direction, dtype) -> ConvProblem:
    return ConvProblem(*sizes, direction=direction, dtype=dtype, layout="NHWC", bias=direction == "F")


def refusal_of(solver, problem, architecture) -> str | None:
    nothing = torch.empty(0)  # no kernel runs
    try:
        host_side.run(solver, problem.native(), architecture, nothing, nothing, nothing, None, lambda *launch: None)
    except ValueError as refusal:
        return str(refusal)
    return None


@pytest.mark.parametrize("name", [*QUICK, *slow(*(name for name in ALL if name not in QUICK))])
@pytest.mark.parametrize("direction", "FBW")
def test_against_pytorch(direction, name):
    problem = problem_of(ALL[name], direction, "BF16")
    for warp, seed in ((32, 0), (64, 1)):
        solvers.check(USUAL, problem, warp=warp, seed=seed)


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize(
    "name", ["7x7, stride 2", "1 channel", "2 channels", "stride 1", "8, stride 2", "3, divided by 1.5"]
)
@pytest.mark.parametrize("dtype", ["FP16", "FP32"])
@pytest.mark.parametrize("direction", "FBW")
def test_other_types(direction, dtype, name):
    for warp in emulator.WARPS:
        solvers.check(USUAL, problem_of(ALL[name], direction, dtype), warp=warp)


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("name", ["7x7, stride 2", "4 channels a group"])
@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != USUAL])
def test_every_solver(solver, direction, name):
    problem = problem_of(ALL[name], direction, "BF16")
    if solver == "gpu_packed_gemm_128x32" and direction == "W":
        with pytest.raises(ValueError, match="it is not compiled for this data type and architecture"):
            solvers.check(solver, problem)
    else:
        solvers.check(solver, problem)


@pytest.mark.parametrize(
    "sizes", [(8, 3, 40, 40, 16, 3, 3, 1, 1, 2, 2), (4, 32, 32, 32, 32, 3, 3, 1, 1, 1, 1, 1, 1, 8)]
)
def test_weight_grad_of_several_parts(sizes, monkeypatch):
    """Enough positions for the sums to be split, and few enough for them to stay exact."""
    parts, launch = [], emulator.launch
    monkeypatch.setattr(
        emulator, "launch", lambda *names, grid, **rest: (parts.append(grid[2]), launch(*names, grid=grid, **rest))
    )
    for warp in emulator.WARPS:
        solvers.check(USUAL, problem_of(sizes, "W", "BF16"), warp=warp)
        assert max(parts) > 1
        parts.clear()


@st.composite
def problems(draw) -> ConvProblem:
    dtype = draw(st.sampled_from(list(DTYPES)))
    r, s = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    pads = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    strides = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 2, 3, 4]))
    dilations = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 1, 2]))
    h, w = (
        draw(st.integers(max(1, dilation * (filter - 1) + 1 - 2 * pad), 16))
        for filter, pad, dilation in zip((r, s), pads, dilations, strict=True)
    )
    if draw(st.booleans()):
        groups, c, k = 1, draw(st.integers(1, 4)), draw(st.integers(1, 3)) * DTYPES[dtype]
    else:
        groups = draw(st.sampled_from([4, 6, 8, 16, 24]))
        c, k = (groups * draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])) for _ in "ck")
    return problem_of(
        (draw(st.integers(1, 3)), c, h, w, k, r, s, *pads, *strides, *dilations, groups),
        draw(st.sampled_from("FBW")),
        dtype,
    )


@emulator.without_sanitizers
@settings(max_examples=examples(200))
@given(problem=problems(), warp=st.sampled_from(emulator.WARPS), seed=st.integers(0, 1000))
def test_whatever_it_accepts_is_right(problem, warp, seed):
    assume(refusal_of(USUAL, problem, solvers.ARCHITECTURES[warp]) is None)
    solvers.check(USUAL, problem, warp=warp, seed=seed)


@pytest.mark.skipif(gpu.unavailable("sm_90") is not None and not os.environ.get("CI"), reason="no kernels for sm_90")
def test_workspace():
    """Packed operands, in multiples of 256 bytes: 115 pairs of positions per line, 4 pairs of taps."""
    stem = "3-224-224-7x7-64-112-112-32-3x3-2x2-1x1-0-NHWC-NHWC-NHWC-BF16-F"
    groups = "128-56-56-3x3-128-56-56-32-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-BF16-F_g32"
    x, filter = 32 * 224 * 115 * 8 * 2, 64 * 7 * 4 * 8 * 2
    for key, expected in {stem: x + filter, groups: 128 * 9 * 64 * 2}.items():
        actual = {candidate.name: candidate for candidate in candidates(ConvProblem.parse(key), "sm_90")}
        assert actual["gpu_packed_gemm_128x64"].workspace_bytes == expected
        # Problems where no selector decides.
        assert next(c.name for c in candidates(ConvProblem.parse(key), "sm_80") if c.chosen) == "aten"


def test_refusals():
    def complaint(*sizes, dtype="BF16", layout="NHWC", **others):
        return refusal_of(USUAL, ConvProblem(*sizes, dtype=dtype, layout=layout, **others), "sm_80")

    assert complaint(1, 3, 9, 9, 8, 3, 3, layout="NCHW") == "it reads NHWC only"
    assert complaint(1, 3, 9, 9, 8, 3, 3, dtype="FP64") == "it computes fp32, fp16 and bf16 only"
    assert complaint(1, 64, 9, 9, 64, 3, 3) == "it packs groups of channels, and input of at most 4 channels"
    assert complaint(1, 4, 9, 9, 8, 3, 3, dtype="FP32") == "its channels are multiples of 16 bytes as they are"
    assert complaint(1, 3, 9, 9, 12, 3, 3) == "the number of output channels is no multiple of 16 bytes"
    assert complaint(1, 128, 9, 9, 128, 3, 3, groups=2) == "its groups are wide enough as they are"
    assert "no number of its groups" in complaint(1, 12, 9, 9, 12, 3, 3, groups=4)
    assert "at most 128 channels" in complaint(1, 17 * 8, 9, 9, 17 * 8, 3, 3, groups=8)
    assert "strides up to 4" in complaint(1, 3, 32, 32, 8, 16, 16, 0, 0, 16, 16, direction="B")
    assert "32 bits" in complaint(1 << 12, 3, 1 << 9, 1 << 9, 8, 3, 3, 1, 1, 2, 2)
