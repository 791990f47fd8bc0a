"""The depthwise GPU solvers on the CPU, host side and kernels, against PyTorch: every direction and type."""

import itertools

import pytest
from marks import slow

import emulator
from emulator import solvers
from torch_reformer import ConvProblem

pytestmark = emulator.needed
TYPES = ["BF16"] if emulator.SANITIZE else ["BF16", *slow("FP16", "FP32")]  # sanitized kernels compile slowly

# (solver, direction, filter, stride, channels, size of x, padding): channels that don't fill a block, batch elements
# that don't fill a tile, and one that takes several tiles in both directions.
CASES = [
    ("2x7", "F", 3, 1, 70, (40, 41), (1, 1)),
    ("4x7", "F", 3, 1, 24, (9, 17), (1, 1)),
    ("2x4", "F", 7, 2, 72, (40, 90), (3, 3)),  # lines too long for an AMD GPU's shared memory
    ("2x4", "F", 5, 2, 10, (12, 21), (2, 1)),
    ("2x4", "F", 7, 1, 6, (8, 9), (3, 3)),
    ("2x4", "B", 3, 1, 10, (9, 11), (1, 0)),
    ("4x4", "B", 3, 2, 24, (10, 13), (1, 1)),
    ("2x7", "B", 5, 2, 6, (11, 20), (2, 1)),
    ("2x7", "B", 7, 1, 10, (9, 16), (3, 2)),
    ("4x4", "W", 3, 1, 24, (9, 11), (1, 1)),
    ("2x7", "W", 3, 1, 68, (33, 34), (1, 1)),
    ("2x4", "W", 5, 2, 10, (12, 21), (2, 0)),
    ("2x4", "W", 7, 2, 6, (13, 14), (3, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
@pytest.mark.parametrize("dtype", TYPES)
def test_against_pytorch(dtype, case):
    strip, direction, filter, stride, channels, (h, w), (pad_h, pad_w) = case
    problem = ConvProblem(
        2, channels, h, w, channels, filter, filter, pad_h, pad_w, stride, stride,
        groups=channels, direction=direction, dtype=dtype, layout="NHWC", bias=direction == "F",
    )  # fmt: skip
    for warp, seed in ((32, 0), (64, 1)):
        solvers.check(f"gpu_depthwise_{strip}", problem, warp=warp, seed=seed)


@pytest.mark.parametrize("arch", solvers.MOST_SHARED)
@pytest.mark.parametrize("direction", "FBW")
def test_tiles_fit_into_shared_memory(arch, direction):
    """Tiles fit however long the lines are."""
    asked = []
    for filter, stride, width, dtype in itertools.product((3, 5, 7), (1, 2), (30, 500), ("BF16", "FP32")):
        problem = ConvProblem(
            8, 256, width, width, 256, filter, filter, filter // 2, filter // 2, stride, stride,
            groups=256, direction=direction, dtype=dtype, layout="NHWC",
        )  # fmt: skip
        asked += solvers.shared_bytes("gpu_depthwise_2x4", problem, arch)
    assert len(asked) >= 24 and max(asked) <= solvers.MOST_SHARED[arch]
