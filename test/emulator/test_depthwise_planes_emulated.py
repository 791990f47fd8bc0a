"""The depthwise GPU solvers for NCHW on the CPU, host side and kernels, against PyTorch: every direction and type."""

import itertools
import random

import pytest
from marks import slow

import emulator
from emulator import solvers
from torch_reformer import ConvProblem
from torch_reformer.selector.candidates import candidates

pytestmark = emulator.needed
TYPES = ["BF16"] if emulator.SANITIZE else ["BF16", *slow("FP16", "FP32")]  # sanitized kernels compile slowly
SHAPES = ["wide", "tall"]
WARPS = {"wide": (32,), "tall": (64,)} if emulator.SANITIZE else dict.fromkeys(SHAPES, (32, 64))


def compiled(shape, filter, amd):
    """True if the kernel exists: AMD's GPUs have no tall strips of wide filters."""
    return not (amd and shape == "tall" and filter > 3)


def warps(shape, filter):
    return tuple(warp for warp in WARPS[shape] if compiled(shape, filter, amd=warp == 64)) or (32,)


def depthwise(direction, filter, stride, n, channels, size, padding, dtype="BF16"):
    return ConvProblem(
        n, channels, *size, channels, filter, filter, *padding, stride, stride,
        groups=channels, direction=direction, dtype=dtype, layout="NCHW", bias=direction == "F",
    )  # fmt: skip


# (filter, stride, batch, channels, size of x, padding): every filter and stride; channel maps with rows aligned to 2 to
# 16 bytes; blocks with many channel maps or a part of one, the last block with fewer; several tiles per block; and
# paddings that shift the rows.
CASES = [
    (3, 1, 2, 70, (7, 7), (1, 1)),
    (3, 1, 5, 3, (9, 13), (2, 0)),
    (3, 2, 2, 20, (28, 28), (1, 1)),
    (7, 2, 2, 5, (23, 22), (1, 6)),
    *slow((5, 1, 3, 17, (14, 14), (2, 2)), (5, 2, 1, 2, (33, 30), (4, 3)), (7, 1, 1, 3, (56, 56), (3, 3))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("shape", SHAPES)
def test_against_pytorch(shape, direction, dtype, case):
    problem = depthwise(direction, *case, dtype)
    for warp in warps(shape, case[0]):
        solvers.check(f"gpu_depthwise_planes_{shape}", problem, warp=warp, seed=warp // 64)


# The kernels of one case, already compiled, on other geometries: lines of one position, channel maps smaller than the
# filter, any padding.
@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", [(3, 1), (3, 2), (7, 2), *slow((5, 1), (5, 2), (7, 1))], ids=str)
def test_any_geometry(shape, direction, case):
    filter, stride = case
    seed = 10 * filter + stride
    generator = random.Random(seed)
    for _ in range(5 if emulator.SANITIZE else 20):
        padding = [generator.randrange(filter) for _ in range(2)]
        size = [max(generator.choice((1, 2, 5, 7, 8, 14, 19, 40)), filter - 2 * pad) for pad in padding]
        problem = depthwise(
            direction, filter, stride, generator.randint(1, 5), generator.choice((1, 2, 3, 8, 24, 70)), size, padding
        )
        solvers.check(f"gpu_depthwise_planes_{shape}", problem, warp=generator.choice(warps(shape, filter)), seed=seed)


@pytest.mark.parametrize("direction", "FBW")
def test_blocks_of_several_tiles(direction):
    """Long rows in bands, and enough channel maps for blocks to copy one tile while they compute another."""
    for problem in (
        depthwise(direction, 3, 1, 1, 1, (90, 520), (1, 1)),
        depthwise(direction, 3, 1, 1, 2, (56, 521), (1, 1)),
        depthwise(direction, 3, 2, 1, 1, (40, 1111), (1, 1)),
        depthwise(direction, 3, 1, 30, 320, (8, 40), (1, 1)),
        depthwise(direction, 3, 1, 150, 320, (7, 7), (1, 1)),
    ):
        for shape in SHAPES:
            solvers.check(f"gpu_depthwise_planes_{shape}", problem, warp=WARPS[shape][0], seed=2)


@pytest.mark.parametrize("arch", solvers.MOST_SHARED)
@pytest.mark.parametrize("direction", "FBW")
def test_tiles_fit_into_shared_memory(arch, direction):
    asked = []
    for shape, filter, stride, width, dtype in itertools.product(
        SHAPES, (3, 5, 7), (1, 2), (7, 30, 112, 500), ("BF16", "FP32")
    ):
        if not compiled(shape, filter, amd=arch.startswith("gfx")):
            continue
        problem = depthwise(direction, filter, stride, 8, 256, (width, width), (filter // 2,) * 2, dtype)
        asked += solvers.shared_bytes(f"gpu_depthwise_planes_{shape}", problem, arch)
    assert len(asked) >= 64 and max(asked) <= solvers.MOST_SHARED[arch]


USUAL = [(problem, direction) for direction in "FBW" for problem in ((3, 1, 56), (3, 2, 28), (5, 1, 14), (7, 1, 7))]


@pytest.mark.parametrize("case", USUAL, ids=str)
def test_chosen_in_nchw(case):
    """The static estimate chooses the solver: there are no weights for sm_80."""
    (filter, stride, width), direction = case
    problem = depthwise(direction, filter, stride, 32, 384, (width, width), (filter // 2,) * 2)
    assert next(candidate.name for candidate in candidates(problem, "sm_80") if candidate.chosen).startswith(
        "gpu_depthwise_planes"
    )


@pytest.mark.parametrize(
    "changes",
    [
        ({"dtype": "FP64"}, "fp32, fp16 and bf16"),
        ({"layout": "NHWC"}, "NCHW only"),
        ({"groups": 4}, "one filter a channel"),
        ({"s": 5}, "not square"),
        ({"dilation_h": 2, "dilation_w": 2}, "dilated"),
        ({"stride_h": 3, "stride_w": 3}, "not compiled"),
        ({"pad_h": 3}, "padding"),
        ({"w": 20000}, "shared memory"),
    ],
    ids=str,
)
def test_refusals_say_why(changes):
    members, words = changes
    problem = depthwise("F", 3, 1, 2, 8, (30, 30), (1, 1)).replace(**members)
    for candidate in candidates(problem, "sm_90"):
        if candidate.name.startswith("gpu_depthwise_planes"):
            assert words in candidate.reason
