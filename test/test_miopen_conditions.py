"""Offered solvers of MIOpen: at the edges of the rules, and on problems that MIOpen itself has measured."""

from dataclasses import replace

import pytest
from test_timings import real_database

from torch_reformer import ConvProblem, config
from torch_reformer.selector.candidates import candidates
from torch_reformer.selector.timings import read_timings

F2X3, F2X3_G1, F3X2 = (f"ConvBinWinogradRxS{which}" for which in ("f2x3", "f2x3g1", "f3x2"))
RXS, U3X3 = "ConvBinWinogradRxS", "ConvBinWinograd3x3U"
OCL, OCL_1X1 = "ConvOclDirectFwd", "ConvOclDirectFwd1x1"
TILES, PADDED = (f"ConvHipImplicitGemmForwardV4R4Xdlops{which}" for which in ("", "_Padded_Gemm"))
GTC = {
    d: f"ConvAsmImplicitGemmGTCDynamic{word}XdlopsNHWC" for d, word in zip("FBW", ("Fwd", "Bwd", "Wrw"), strict=True)
}
GTC_F, GTC_B = (f"ConvAsmImplicitGemmGTCDynamic{word}Xdlops" for word in ("Fwd", "Bwd"))  # of NCHW
NAIVE = {d: f"ConvDirectNaiveConv{word}" for d, word in zip("FBW", ("Fwd", "Bwd", "Wrw"), strict=True)}
GEMM_W = "GemmWrw1x1_stride1"

POINTWISE = ConvProblem(32, 64, 28, 28, 128, 1, 1)
CONV_3X3 = ConvProblem(32, 64, 28, 28, 128, 3, 3, 1, 1)
HALF = replace(CONV_3X3, dtype="FP16")
STRIDED = replace(CONV_3X3, stride_h=2, stride_w=2)
GROUPED = replace(CONV_3X3, groups=32)
# In a weight gradient by Winograd the output gradient is the filter, and the batch is the channels.
WEIGHTS = replace(CONV_3X3, direction="W")


def refusals(problem: ConvProblem, device: str) -> dict[str, str | None]:
    return {candidate.name: candidate.reason for candidate in candidates(problem, device)}


@pytest.mark.parametrize(
    ("problem", "device", "offered", "refused"),
    [
        (CONV_3X3, "gfx908", {F2X3_G1, F3X2, RXS, U3X3, TILES, GTC["F"]}, {F2X3, PADDED, GTC["B"], GEMM_W}),
        (CONV_3X3, "gfx942", {F2X3_G1, F3X2, NAIVE["F"], GTC["F"]}, {F2X3, RXS, U3X3, TILES, PADDED}),
        (replace(CONV_3X3, layout="NHWC"), "gfx942", {NAIVE["F"], GTC["F"]}, {F2X3_G1, F3X2, "GemmFwdRest"}),
        (replace(CONV_3X3, dtype="BF16"), "gfx90a", {GTC["F"], NAIVE["F"]}, {F2X3_G1, F3X2}),
        (replace(CONV_3X3, dtype="BF16"), "gfx908", {TILES}, {GTC["F"]}),
        (replace(CONV_3X3, dtype="FP64"), "gfx90a", set(), {NAIVE["F"], GTC["F"], "GemmFwdRest"}),
        # MIOpen rounds gradients of fp16 to bf16 on gfx90a, which few kernels can.
        (replace(HALF, direction="B"), "gfx90a", {GTC["B"], NAIVE["B"]}, {F2X3_G1, F3X2}),
        (replace(HALF, direction="B"), "gfx942", {F2X3_G1, F3X2}, {F2X3}),
        (HALF, "gfx90a", {F2X3_G1, F3X2, TILES}, {F2X3}),
        # Groups.
        (GROUPED, "gfx90a", {F2X3, F3X2, NAIVE["F"], "GemmFwdRest"}, {F2X3_G1, GTC["F"]}),
        (replace(GROUPED, direction="W"), "gfx90a", {F2X3, F3X2, "ConvOclBwdWrW2<1>"}, {F2X3_G1, GTC["W"]}),
        # Strides: Winograd supports 2 by 2, but not in weight gradients.
        (STRIDED, "gfx90a", {F2X3_G1, F3X2}, {U3X3}),
        (replace(STRIDED, direction="W"), "gfx90a", {"ConvWinograd3x3MultipassWrW<3-2>"}, {F2X3, F3X2}),
        (replace(STRIDED, stride_w=1), "gfx90a", {NAIVE["F"]}, {F2X3_G1, F3X2}),
        (replace(CONV_3X3, stride_h=3, stride_w=3), "gfx90a", {NAIVE["F"]}, {F2X3_G1, F3X2}),
        (replace(CONV_3X3, dilation_h=2), "gfx90a", {NAIVE["F"]}, {F2X3_G1, F3X2}),
        # An input gradient needs a padding smaller than the filter.
        (replace(CONV_3X3, direction="B", pad_h=2, pad_w=2), "gfx90a", {F2X3_G1, F3X2}, set()),
        (replace(CONV_3X3, direction="B", pad_h=3, pad_w=2), "gfx90a", {NAIVE["B"]}, {F2X3_G1, F3X2}),
        (replace(CONV_3X3, pad_h=3, pad_w=3), "gfx90a", {F2X3_G1, F3X2}, set()),
        # Images (in gradients, outputs) of 6 by 6 are too small where batch and channels are 4 or less.
        (ConvProblem(4, 4, 6, 6, 64, 3, 3, 1, 1), "gfx90a", {NAIVE["F"]}, {F2X3_G1, F3X2}),
        (ConvProblem(4, 5, 6, 6, 64, 3, 3, 1, 1), "gfx90a", {F2X3_G1, F3X2}, set()),
        (ConvProblem(4, 4, 6, 6, 64, 3, 3, 1, 1, direction="B"), "gfx90a", {F2X3_G1, F3X2}, set()),
        (ConvProblem(4, 64, 8, 8, 4, 3, 3, direction="B"), "gfx90a", {NAIVE["B"]}, {F2X3_G1, F3X2}),
        (ConvProblem(4, 64, 8, 8, 4, 3, 3, direction="W"), "gfx90a", {NAIVE["W"]}, {F2X3, F2X3_G1, F3X2}),
        # The older Winograd kernels need an even number of channels from 18 on (in the gradient, of the output).
        (replace(CONV_3X3, c=18), "gfx908", {U3X3, RXS}, set()),
        (replace(CONV_3X3, c=16), "gfx908", {F2X3_G1}, {U3X3, RXS}),
        (replace(CONV_3X3, c=19), "gfx908", {F2X3_G1}, {U3X3, RXS}),
        (replace(CONV_3X3, c=3, direction="B"), "gfx908", {U3X3, RXS}, set()),
        (replace(CONV_3X3, k=17, direction="B"), "gfx908", {F2X3_G1}, {U3X3, RXS}),
        (replace(HALF, c=36), "gfx908", {RXS}, {U3X3}),
        (replace(HALF, c=32), "gfx908", {F2X3_G1}, {RXS}),
        (replace(HALF, c=38), "gfx908", {F2X3_G1}, {RXS}),
        (WEIGHTS, "gfx908", {RXS, F2X3, F2X3_G1, F3X2}, {U3X3}),
        (replace(WEIGHTS, dtype="FP16"), "gfx908", {F2X3}, {RXS}),
        # 2^16 in any size is too much for Winograd.
        (replace(POINTWISE, n=65535, h=2, w=2), "gfx90a", {F2X3_G1, F3X2}, set()),
        (replace(POINTWISE, n=65536, h=2, w=2), "gfx90a", {"GemmFwd1x1_0_1"}, {F2X3_G1, F3X2}),
        # GEMMs by filter, stride and padding.
        (POINTWISE, "gfx942", {"GemmFwd1x1_0_1"}, {"GemmFwd1x1_0_2", "GemmFwdRest"}),
        (replace(POINTWISE, stride_h=2, stride_w=2), "gfx942", {"GemmFwd1x1_0_2"}, {"GemmFwd1x1_0_1", "GemmFwdRest"}),
        (replace(POINTWISE, stride_h=3, stride_w=3), "gfx942", {"GemmFwdRest"}, {"GemmFwd1x1_0_1", "GemmFwd1x1_0_2"}),
        (replace(POINTWISE, direction="W"), "gfx942", {GEMM_W}, {"GemmWrwUniversal"}),
        (replace(POINTWISE, direction="W", groups=4), "gfx942", {GEMM_W}, {"GemmWrwUniversal"}),
        (replace(POINTWISE, direction="W", pad_h=1), "gfx942", {"GemmWrwUniversal"}, {GEMM_W}),
        (replace(POINTWISE, direction="W", stride_w=2), "gfx942", {"GemmWrwUniversal"}, {GEMM_W}),
        (replace(POINTWISE, direction="W", layout="NHWC"), "gfx942", {GTC["W"]}, {GEMM_W, "GemmWrwUniversal"}),
        # 2^31 elements are too many for this package's rules.
        (ConvProblem(64, 512, 256, 255, 64, 1, 1, direction="W"), "gfx942", {GEMM_W, NAIVE["W"]}, set()),
        (ConvProblem(64, 512, 256, 256, 64, 1, 1, direction="W"), "gfx942", set(), {GEMM_W, NAIVE["W"]}),
        (replace(POINTWISE, n=2**17, c=127, k=128, h=1, w=1), "gfx942", set(), {NAIVE["F"]}),  # blocks of the grid
        # The forward implicit GEMM of whole tiles, or the one that pads: k, n * h * w and c * r * s decide.
        (ConvProblem(1, 4, 8, 8, 4, 1, 1), "gfx90a", {PADDED}, {TILES}),
        (ConvProblem(1, 16, 8, 8, 4, 1, 1), "gfx90a", {TILES, PADDED}, set()),
        (ConvProblem(1, 16, 8, 8, 16, 1, 1), "gfx90a", {TILES}, {PADDED}),
        (ConvProblem(1, 12, 8, 8, 16, 1, 1), "gfx90a", {TILES}, {PADDED}),
        (ConvProblem(1, 4, 4, 4, 16, 1, 1), "gfx90a", {TILES, PADDED}, set()),
        (ConvProblem(1, 8, 4, 4, 16, 1, 1, dtype="FP16"), "gfx90a", {PADDED}, {TILES}),
        (ConvProblem(1, 16, 4, 4, 16, 1, 1, dtype="FP16"), "gfx90a", {TILES, PADDED}, set()),
        (ConvProblem(1, 4, 4, 4, 16, 1, 1, dtype="BF16"), "gfx90a", {PADDED}, {TILES}),
        (ConvProblem(1, 8, 4, 4, 16, 1, 1, dtype="BF16"), "gfx90a", {TILES, PADDED}, set()),
        (ConvProblem(1, 4, 4, 8, 32, 1, 1, dtype="FP16"), "gfx90a", {PADDED}, {TILES}),
        (ConvProblem(1, 8, 4, 8, 32, 1, 1, dtype="FP16"), "gfx90a", {TILES, PADDED}, set()),
        (ConvProblem(1, 4, 4, 4, 64, 1, 1, dtype="FP16"), "gfx90a", {TILES, PADDED}, set()),
        # The implicit GEMMs in assembly: channels of the result, batch and depth decide.
        (ConvProblem(1, 4, 7, 7, 16, 3, 3, 1, 1), "gfx908", {GTC_F}, {GTC_B}),
        (ConvProblem(1, 4, 7, 7, 16, 3, 3, 1, 1), "gfx90a", set(), {GTC_F}),
        (ConvProblem(1, 4, 7, 7, 16, 3, 3, 1, 1, layout="NHWC"), "gfx908", set(), {GTC_F}),
        (ConvProblem(1, 4, 7, 7, 16, 3, 3, 1, 1, dtype="BF16"), "gfx908", set(), {GTC_F}),
        (ConvProblem(1, 4, 7, 7, 16, 3, 3, 1, 1, 2, 2, 3, 3), "gfx908", {GTC_F}, set()),
        (ConvProblem(1, 3, 7, 7, 16, 3, 3, 1, 1), "gfx908", set(), {GTC_F}),
        (ConvProblem(16, 4, 7, 7, 20, 4, 3, 1, 1), "gfx908", {GTC_F}, set()),
        (ConvProblem(16, 4, 7, 7, 20, 3, 3, 1, 1), "gfx908", set(), {GTC_F}),
        (ConvProblem(16, 4, 7, 7, 22, 4, 3, 1, 1), "gfx908", set(), {GTC_F}),
        (ConvProblem(8, 4, 7, 7, 20, 4, 3, 1, 1), "gfx908", set(), {GTC_F}),
        (ConvProblem(1, 16, 7, 7, 20, 1, 1), "gfx908", {GTC_F}, set()),
        (ConvProblem(1, 8, 7, 7, 20, 1, 1), "gfx908", set(), {GTC_F}),
        (ConvProblem(1, 8, 7, 7, 16, 1, 1), "gfx908", {GTC_F}, set()),
        (ConvProblem(1, 12, 7, 7, 16, 1, 1), "gfx908", set(), {GTC_F}),
        (ConvProblem(1, 8, 7, 7, 32, 3, 3, 1, 1, groups=2), "gfx908", set(), {GTC_F}),
        # Forward in fp16: all kinds, except for 1x1 filters.
        (ConvProblem(1, 3, 7, 7, 5, 3, 3, 1, 1, dtype="FP16"), "gfx908", {GTC_F}, set()),
        (ConvProblem(3, 8, 7, 7, 5, 1, 1, dtype="FP16"), "gfx908", {GTC_F}, set()),
        (ConvProblem(3, 12, 7, 7, 5, 1, 1, dtype="FP16"), "gfx908", set(), {GTC_F}),
        (ConvProblem(1, 6, 7, 7, 6, 3, 3, 1, 1, groups=2, dtype="FP16"), "gfx908", set(), {GTC_F}),
        # The input gradient.
        (ConvProblem(1, 32, 7, 7, 4, 3, 3, 1, 1, direction="B"), "gfx908", {GTC_B}, {GTC_F}),
        (ConvProblem(1, 32, 7, 7, 3, 3, 3, 1, 1, direction="B"), "gfx908", set(), {GTC_B}),
        (ConvProblem(2, 48, 7, 7, 4, 3, 3, 1, 1, direction="B"), "gfx908", {GTC_B}, set()),
        (ConvProblem(3, 48, 7, 7, 4, 3, 3, 1, 1, direction="B"), "gfx908", set(), {GTC_B}),
        (ConvProblem(16, 12, 7, 7, 16, 3, 3, 1, 1, direction="B"), "gfx908", {GTC_B}, set()),
        (ConvProblem(8, 12, 7, 7, 16, 3, 3, 1, 1, direction="B"), "gfx908", set(), {GTC_B}),
        (ConvProblem(16, 12, 7, 7, 8, 3, 3, 1, 1, direction="B"), "gfx908", set(), {GTC_B}),
        (ConvProblem(2, 128, 7, 7, 64, 3, 3, 1, 1, groups=2, direction="B"), "gfx908", set(), {GTC_B}),
        (ConvProblem(1, 64, 7, 7, 16, 3, 3, 1, 1, direction="B", dtype="FP16"), "gfx908", {GTC_B}, set()),
        (ConvProblem(1, 64, 7, 7, 8, 3, 3, 1, 1, direction="B", dtype="FP16"), "gfx908", set(), {GTC_B}),
        (ConvProblem(4, 48, 7, 7, 8, 3, 3, 1, 1, direction="B", dtype="FP16"), "gfx908", {GTC_B}, set()),
        (ConvProblem(2, 48, 7, 7, 8, 3, 3, 1, 1, direction="B", dtype="FP16"), "gfx908", set(), {GTC_B}),
        (ConvProblem(4, 48, 7, 7, 4, 3, 3, 1, 1, direction="B", dtype="FP16"), "gfx908", set(), {GTC_B}),
        (ConvProblem(1, 128, 7, 7, 32, 3, 3, 1, 1, groups=2, direction="B", dtype="FP16"), "gfx908", {GTC_B}, set()),
        (ConvProblem(1, 128, 7, 7, 16, 3, 3, 1, 1, groups=2, direction="B", dtype="FP16"), "gfx908", set(), {GTC_B}),
        # With a stride there is a product per phase: of 3 rows, 2 and 1; of 4, 2 and 2. Dilation may leave one phase.
        (ConvProblem(1, 32, 8, 8, 4, 3, 3, 1, 1, 2, 2, direction="B"), "gfx908", {GTC_B}, set()),
        (ConvProblem(1, 32, 8, 8, 2, 3, 3, 1, 1, 2, 2, direction="B"), "gfx908", set(), {GTC_B}),
        (ConvProblem(1, 32, 8, 8, 2, 4, 3, 1, 1, 2, 2, direction="B"), "gfx908", {GTC_B}, set()),
        (ConvProblem(1, 32, 8, 8, 1, 2, 2, 1, 1, 2, 2, direction="B"), "gfx908", set(), {GTC_B}),
        (ConvProblem(1, 32, 8, 8, 1, 2, 2, 1, 1, 2, 2, 2, 2, direction="B"), "gfx908", {GTC_B}, set()),
        # 4 GiB are too many.
        (ConvProblem(255, 64, 256, 256, 16, 1, 1), "gfx908", {GTC_F}, set()),
        (ConvProblem(256, 64, 256, 256, 16, 1, 1), "gfx908", set(), {GTC_F}),
        # Some releases name a kernel for NCHW on gfx908 that does not exist.
        (CONV_3X3, "gfx908", set(), {NAIVE["F"]}),
        (replace(CONV_3X3, layout="NHWC"), "gfx908", {NAIVE["F"]}, {RXS, U3X3, F2X3_G1}),
        # Solvers whose limits nobody checks are not offered.
        (CONV_3X3, "gfx908", set(), {"ConvMlirIgemmFwdXdlops", "ConvAsm3x3U"}),
        # The direct kernels in OpenCL: square filters of odd sizes, equal strides of 1 or 2, 64 KiB per block.
        (CONV_3X3, "gfx908", {OCL}, {OCL_1X1}),
        (STRIDED, "gfx90a", {OCL}, set()),
        (replace(CONV_3X3, stride_h=2), "gfx90a", set(), {OCL}),
        (replace(CONV_3X3, pad_w=0), "gfx90a", set(), {OCL}),
        (replace(CONV_3X3, dilation_w=2), "gfx90a", set(), {OCL}),
        (replace(CONV_3X3, r=4, s=4), "gfx90a", set(), {OCL}),
        (replace(HALF, r=4, s=4, pad_h=0, pad_w=0), "gfx90a", {OCL}, set()),
        (replace(CONV_3X3, r=4, s=3, groups=2), "gfx90a", {OCL}, set()),
        (replace(HALF, stride_h=2, stride_w=2), "gfx90a", set(), {OCL}),
        (replace(HALF, stride_h=2, stride_w=2, direction="B"), "gfx90a", {OCL}, set()),
        (replace(CONV_3X3, direction="B", pad_h=3, pad_w=3), "gfx90a", set(), {OCL}),
        (replace(CONV_3X3, direction="W"), "gfx90a", set(), {OCL}),
        (ConvProblem(8, 8, 64, 64, 8, 11, 11, 5, 5), "gfx90a", {OCL}, set()),
        (ConvProblem(8, 8, 64, 64, 8, 31, 31, 15, 15, 2, 2, groups=2), "gfx90a", set(), {OCL}),  # 93 x 93 x 2 in fp32
        (POINTWISE, "gfx90a", {OCL_1X1}, {OCL}),
        (replace(POINTWISE, c=128), "gfx90a", set(), {OCL_1X1}),  # several blocks share a result
        (replace(POINTWISE, c=120), "gfx90a", {OCL_1X1}, set()),
        (replace(POINTWISE, c=128, dtype="BF16"), "gfx90a", {OCL_1X1}, set()),
        (replace(POINTWISE, c=128, direction="B"), "gfx90a", {OCL_1X1}, set()),
        (replace(POINTWISE, stride_h=2, stride_w=2), "gfx90a", {OCL_1X1}, set()),
        (replace(POINTWISE, pad_h=1, pad_w=1), "gfx90a", set(), {OCL_1X1}),
    ],
    ids=lambda value: f"{value}" if isinstance(value, (ConvProblem, str)) else "",
)
def test_at_the_edges(problem, device, offered, refused):
    reasons = refusals(problem, device)
    assert {name: reasons[name] for name in offered} == dict.fromkeys(offered)
    assert all(reasons[name] for name in refused), {name: reasons[name] for name in refused}


def test_atomic_additions_are_not_offered_where_results_must_repeat():
    with config(deterministic=True):
        reasons = refusals(CONV_3X3, "gfx90a")
    assert "deterministic" in reasons[GTC["F"]] and "deterministic" in reasons[TILES]
    assert reasons[F2X3_G1] is None and reasons["GemmFwdRest"] is None


# The rules are deliberately stricter than MIOpen in these cases.
STRICTER = {
    "the problem is too large for it",
    "some of MIOpen's releases lack its kernel on gfx908",
    "several of its blocks add to a result, and one of them sets it to 0 first",
    "another GEMM of MIOpen's computes 1x1 filters",  # unless its workspace is larger than GPUs allocate
}
UNCHECKED = "MIOpen does not tell whether this solver applies"


# MIOpen has run everything in its database, so the solvers that a record names apply. Shares: records whose fastest
# solver is offered, and those whose fastest or second fastest is.
@pytest.mark.parametrize(
    ("device", "fastest", "second"), [("gfx908", 0.67, 0.93), ("gfx90a", 0.78, 0.94), ("gfx942", 0.99, 0.99)]
)
def test_what_miopen_has_measured_is_offered(device, fastest, second):
    found, strict, entries = [], 0, 0
    for record in read_timings(real_database(device))[::40]:
        if "INT8" in record.key:
            continue
        try:
            known = refusals(record.problem, device)
        except ValueError:  # an impossible problem
            continue
        reasons = [known[timing.solver] for timing in sorted(record.timings, key=lambda timing: timing.ms)]
        unexpected = {reason for reason in reasons if reason} - STRICTER - {UNCHECKED}
        assert not unexpected, (record.key, unexpected)
        strict += sum(reason == "the problem is too large for it" for reason in reasons)
        entries += len(reasons)
        found.append([reason is None for reason in reasons[:2]])
    assert strict < 0.005 * entries
    assert sum(offered[0] for offered in found) > fastest * len(found)
    assert sum(any(offered) for offered in found) > second * len(found)
