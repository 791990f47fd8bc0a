"""The kernels for Hopper only, emulated: exact on small integers."""

import ctypes
import itertools

import pytest
import torch
from marks import slow

import emulator
from emulator import plans
from emulator.plans import DIRECTIONS, Problem
from emulator.tma_gemm import COLUMNS, ROWS, check_gemm, gemm_kernels, planner

pytestmark = emulator.needed


# n, c, h, w, k: rows, columns and depth of the product are not multiples of a tile's
RAGGED = (2, 72, 9, 10, 88, 1, 1)
WIDE = (1, 200, 17, 16, 328, 1, 1)


@pytest.mark.parametrize("type_name", ["bf16", *slow("fp16")])
@pytest.mark.parametrize(
    "direction, tile",
    [
        *itertools.product(DIRECTIONS, ["64x64_3", "128x64_6", "128x192_4", "128x128_6_pingpong"]),
        *itertools.product(["forward", "input_grad"], ["128x192_4_pingpong"]),
    ],
)
def test_gemm(direction, tile, type_name):
    for seed, sizes in enumerate((RAGGED, (3, 8, 7, 5, 16, 1, 1))):
        check_gemm(Problem(direction, type_name, *sizes), tile, seed=seed)


# Images of fewer positions than a tile and of one and a half tiles; steps that end with an image.
@pytest.mark.parametrize("tile", ["64x64_3", "128x192_4", *slow("128x64_6")])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gemm_in_nchw(direction, tile):
    for seed, sizes in enumerate(((3, 72, 4, 6, 88), (2, 40, 9, 8, 200), (2, 136, 12, 16, 72))):
        type_name = "fp16" if seed == 1 else "bf16"
        check_gemm(Problem(direction, type_name, *sizes, 1, 1, layout="nchw"), tile, seed=seed)
        if direction == "weight_grad":
            check_gemm(Problem(direction, type_name, *sizes, 1, 1, layout="nchw"), tile, splits=2, seed=seed)
        else:
            for row_blocks in (1, 2):
                problem = Problem(direction, type_name, *sizes, 1, 1, layout="nchw")
                check_gemm(problem, tile, row_blocks=row_blocks, seed=seed)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_images_of_one_pixel_are_the_same_in_both_layouts(direction):
    for layout in ("nchw", "nhwc"):
        check_gemm(Problem(direction, "bf16", 70, 40, 1, 1, 72, 1, 1, layout=layout), "64x64_3")


def test_planes_that_no_box_can_begin_in_are_refused():
    numbers = Problem("forward", "bf16", 2, 16, 7, 7, 16, 1, 1, layout="nchw").numbers
    sentence = planner().plan_gemm(numbers, 0, 0, 1, 1, (ctypes.c_void_p * 6)(), None, None, None)
    assert sentence == b"the pixels of an image are no multiple of 16 bytes"


def gemm_tiles(direction, type_name):
    start = f"tma_gemm_{direction}_{type_name}_"
    return [name.removeprefix(start) for name in gemm_kernels() if name.startswith(start)]


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("type_name", ["bf16", "fp16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_tiles_of_gemm(direction, type_name):
    problem = Problem(direction, type_name, *WIDE)
    tiles = gemm_tiles(direction, type_name)
    assert len(tiles) == (9 if direction == "weight_grad" else 10)
    for seed, tile in enumerate(tiles):
        check_gemm(problem, tile, seed=seed)
        if direction != "weight_grad":
            check_gemm(problem, tile, row_blocks=1, seed=seed)


# The filter stays in shared memory if all its tiles fit, and is otherwise read again for each tile of rows.
@pytest.mark.parametrize("row_blocks", [1, 2])
@pytest.mark.parametrize("tile, resident", [("64x64_6", True), ("64x64_3", False), ("64x128_4", True)])
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
def test_several_tiles_of_rows_a_block(direction, tile, resident, row_blocks):
    problem = Problem(direction, "bf16", 3, 200, 9, 11, 232, 1, 1)  # 5 tiles of rows, 4 steps
    for seed in range(2):
        assert check_gemm(problem, tile, row_blocks=row_blocks, seed=seed) == resident


@pytest.mark.parametrize("tile", ["64x64_3", "128x128_6"])
@pytest.mark.parametrize("splits", [2, 3])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_splits(direction, splits, tile):
    n, c, h, w, k = (2, 40, 13, 15, 72) if direction == "weight_grad" else (1, 392, 7, 9, 328)
    check_gemm(Problem(direction, "bf16", n, c, h, w, k, 1, 1), tile, splits=splits, seed=splits)


def test_more_rounds_of_the_ring_than_it_has_stages():
    for direction in DIRECTIONS:
        sizes = (4, 16, 15, 17, 24) if direction == "weight_grad" else (1, 648, 9, 9, 648)
        for seed in range(3):
            check_gemm(Problem(direction, "bf16", *sizes, 1, 1), "64x64_3", row_blocks=1, seed=seed)


# Rows of one tile and of one to three for each consumer; depths of fewer steps than the ring has stages, of which the
# second operand may be resident, and of more.
@pytest.mark.parametrize("depth", [40, 200, 520])
@pytest.mark.parametrize(
    "direction, tile",
    [
        ("forward", "128x128_6_pingpong"),
        ("input_grad", "128x192_4_pingpong"),
        pytest.param("forward", "128x192_4_pingpong", marks=pytest.mark.slow),
        pytest.param("input_grad", "128x128_6_pingpong", marks=pytest.mark.slow),
    ],
)
def test_pingpong(direction, depth, tile):
    channels = (depth, 72) if direction == "forward" else (72, depth)
    for seed, pixels in enumerate((100, 200, 650)):
        problem = Problem(direction, "bf16", 1, channels[0], 1, pixels, channels[1], 1, 1)
        check_gemm(problem, tile, row_blocks=1, seed=seed)
        check_gemm(problem, tile, row_blocks=1, shared=COLUMNS, seed=seed)


# Odd numbers of tiles of rows and of columns, pairs of tiles from two images, and a split depth.
@pytest.mark.parametrize("shared", [ROWS, COLUMNS])
@pytest.mark.parametrize("layout", ["nhwc", *slow("nchw")])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_pairs_of_blocks(direction, layout, shared):
    tiles = ["64x64_3", "128x64_6", "128x192_4"] + ["128x128_6_pingpong"] * (layout == "nhwc")
    for seed, tile in enumerate(tiles):
        problem = Problem(direction, "bf16", 3, 136, 10, 12, 328, 1, 1, layout=layout)
        check_gemm(problem, tile, shared=shared, seed=seed)
        if direction != "weight_grad":
            check_gemm(problem, tile, shared=shared, row_blocks=1, seed=seed)
        if layout == "nhwc" or direction == "weight_grad":
            check_gemm(problem, tile, shared=shared, splits=2, seed=seed)


# --- depthwise
def depthwise_tiles(problem):
    tiles = (ctypes.c_int32 * 4000)()
    count = planner().depthwise_tiles(problem.numbers, 1000, tiles)
    assert 0 < count < 1000
    return [tuple(tiles[4 * i : 4 * i + 4]) for i in range(count)]


def run_depthwise(problem, tile, *, multiprocessors=1, seed=0):
    """Compare; return (tiles, tiles in shared memory, blocks) per 64 channels, or None if the tile doesn't fit."""
    x, y, filter = map(problem.tensor, (problem.x, problem.y, problem.filter))
    values = problem.bias.to(problem.type[0])
    result = problem.no_result()
    x, y = (x, result) if problem.direction == 0 else (result, y) if problem.direction == 1 else (x, y)
    args, numbers = (ctypes.c_char * planner().depthwise_args_bytes())(), (ctypes.c_int64 * 9)()

    def plan(workspace):
        bias = values.data_ptr() if problem.direction == 0 else None
        pointers = (ctypes.c_void_p * 5)(x.data_ptr(), y.data_ptr(), filter.data_ptr(), bias, workspace)
        of_tile = (ctypes.c_int32 * 4)(*tile)
        return planner().plan_depthwise(problem.numbers, of_tile, multiprocessors, pointers, args, numbers)

    sentence = plan(None)
    if sentence == b"the tile doesn't fit":
        return None
    assert sentence is None, sentence
    partial = torch.full([numbers[6] // 4], torch.nan)
    plan(partial.data_ptr())
    name, entry = (f(problem.numbers).decode() for f in (planner().depthwise_name, planner().depthwise_arguments))
    plans.launch("depthwise/tma_depthwise", name, entry, args, numbers[:5], seed=seed)
    if problem.direction == 2:  # partial sums of blocks, per tap and channel
        channels, _, r, s = problem.filter.shape
        result = partial.view(-1, r, s, channels).double().sum(0).permute(2, 0, 1)[:, None].to(problem.type[0])
    problem.check(result)
    return numbers[7], numbers[8], numbers[1]


def depthwise(direction, type_name, filter, stride, *, n=2, channels=72, size=(9, 19), pad=None):
    others = dict(pad=pad or (filter // 2, filter // 2), stride=(stride, stride), groups=channels)
    return Problem(direction, type_name, n, channels, *size, channels, filter, filter, **others)


KINDS = [(filter, stride) for filter in (3, 5, 7) for stride in (1, 2)]
TWO_KINDS = [(3, 1), (7, 2)]


# The last of 72 channels' boxes has 8, for one warp.
@pytest.mark.parametrize("kind", [*TWO_KINDS, *slow(*(kind for kind in KINDS if kind not in TWO_KINDS))], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_depthwise(direction, kind):
    for seed, type_name in enumerate(("bf16", "fp16")):
        assert run_depthwise(depthwise(direction, type_name, *kind), (2, 1, 3, 1), seed=seed)


@pytest.mark.parametrize("filter, stride", [(3, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_paddings_and_sizes(direction, filter, stride):
    for pad, size in (((0, 1), (12, 17)), ((1, 0), (11, 8)), ((2, 2), (7, 12)), ((0, 0), (8, 9))):
        problem = depthwise(direction, "bf16", filter, stride, n=1, channels=16, size=size, pad=pad)
        assert run_depthwise(problem, (2, 1, 4, 1))


@pytest.mark.parametrize("channels", range(8, 137, 8))
def test_channels(channels):
    """1 to 8 groups of 8 channels in the last box, divided among the warps."""
    for direction in DIRECTIONS:
        problem = depthwise(direction, "bf16", 3, 1, n=1, channels=channels, size=(8, 17))
        assert run_depthwise(problem, (2, 2, 2, 1), seed=channels // 8)


@pytest.mark.parametrize("filter, stride", [(3, 1), (3, 2)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_several_images_a_tile_and_tiles_a_block(direction, filter, stride):
    problem = depthwise(direction, "bf16", filter, stride, n=9, channels=24, size=(6, 7))
    rows = 3 if stride == 2 else 6  # rows of an image, or of an input_grad phase
    for seed in range(3):
        tiles, stages, blocks = run_depthwise(problem, (1, 1, rows, 2), seed=seed)
        assert tiles > blocks and stages > 1
    for images in (2, 4):
        assert run_depthwise(problem, (1, 1, rows, images), multiprocessors=100)


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("filter, stride", KINDS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_tiles_of_depthwise(direction, filter, stride):
    ran = 0
    for sizes in (dict(n=3, size=(14, 15)), dict(n=2, size=(20, 33)), dict(n=5, size=(7, 7), pad=(1, 1))):
        problem = depthwise(direction, "bf16", filter, stride, channels=40, **sizes)
        for seed, tile in enumerate(depthwise_tiles(problem)):
            ran += run_depthwise(problem, tile, multiprocessors=1 + seed % 3, seed=seed) is not None
    assert ran > 20
