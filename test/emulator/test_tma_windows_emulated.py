"""The kernels for Hopper with filters of any size, emulated: exact on small integers."""

import ctypes

import pytest
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow

import emulator
from emulator import plans
from emulator.plans import DIRECTIONS, Problem
from emulator.tma_gemm import COLUMNS, NOTHING, ROWS, check_gemm, gemm_kernels, planner

pytestmark = emulator.needed

# n, c, h, w, k, r, s; padding, stride and dilation where they differ from 0 or 1
PROBLEMS = {
    "3x3": (2, 72, 7, 7, 88, 3, 3, dict(pad=(1, 1))),
    "3x3, stride 2": (2, 40, 13, 11, 24, 3, 3, dict(pad=(1, 1), stride=(2, 2))),
    "3x3, stride 2, even image": (3, 24, 8, 6, 72, 3, 3, dict(pad=(1, 1), stride=(2, 2))),
    "3x3, no padding": (1, 136, 9, 10, 16, 3, 3, {}),
    "3x3, much padding": (1, 8, 5, 6, 40, 3, 3, dict(pad=(3, 2))),
    "3x3, dilation 2": (1, 16, 13, 11, 24, 3, 3, dict(pad=(2, 2), dilation=(2, 2))),
    "3x3, dilation 3, stride 2": (1, 16, 13, 12, 8, 3, 3, dict(pad=(3, 2), stride=(2, 2), dilation=(3, 3))),
    "3x3, dilation 2, stride 2": (1, 16, 13, 12, 8, 3, 3, dict(pad=(2, 1), stride=(2, 2), dilation=(2, 2))),
    "1x1, stride 2": (2, 200, 13, 12, 24, 1, 1, dict(stride=(2, 2))),
    "1x1, padding": (2, 16, 4, 5, 24, 1, 1, dict(pad=(1, 2))),
    "1x1, stride 2, padding": (4, 16, 7, 1, 24, 1, 1, dict(pad=(1, 1), stride=(2, 2))),
    "2x2, stride 2": (2, 24, 9, 8, 40, 2, 2, dict(stride=(2, 2))),
    "4x4": (1, 16, 7, 9, 24, 4, 4, dict(pad=(1, 2))),
    "5x5": (1, 24, 7, 6, 16, 5, 5, dict(pad=(2, 2))),
    "5x5, stride 2": (1, 24, 11, 9, 16, 5, 5, dict(pad=(2, 2), stride=(2, 2))),
    "1x7": (3, 40, 6, 7, 24, 1, 7, dict(pad=(0, 3))),
    "7x1": (3, 40, 6, 7, 24, 7, 1, dict(pad=(3, 0))),
    "7x7, image below filter": (5, 8, 3, 2, 16, 7, 7, dict(pad=(3, 3))),
    "3x5, stride along one axis": (2, 16, 8, 9, 24, 3, 5, dict(pad=(1, 2), stride=(2, 1))),
    "many images of a pixel": (70, 16, 1, 1, 24, 3, 3, dict(pad=(1, 1))),
    "one pixel and stride 2": (3, 16, 1, 1, 24, 3, 3, dict(pad=(1, 1), stride=(2, 2))),
    "a pixel left over": (1, 16, 17, 8, 24, 3, 3, dict(pad=(0, 1), stride=(2, 2))),
}
# input_grad supports strides up to 2.
STRIDE_3 = (2, 24, 10, 11, 16, 3, 3, dict(pad=(1, 0), stride=(3, 3)))
WIDE = (2, 72, 11, 13, 200, 3, 3, dict(pad=(1, 1)))


def problem_of(direction, sizes, type_name="bf16"):
    *sizes, others = sizes
    return Problem(direction, type_name, *sizes, **others)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_direction(direction, name):
    type_name, tile = ("fp16", "128x64_6") if name == "3x3, stride 2" else ("bf16", "64x64_3")
    for seed in range(2):
        check_gemm(problem_of(direction, PROBLEMS[name], type_name), tile, seed=seed)


@pytest.mark.parametrize("direction", ["forward", "weight_grad"])
def test_stride_3(direction):
    check_gemm(problem_of(direction, STRIDE_3), "64x64_3")


# In weight_grad, tiles of columns that begin and end within a tap's channels.
@pytest.mark.parametrize("tile", ["128x192_4", "64x128_4"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_wide_tiles(direction, tile):
    check_gemm(problem_of(direction, WIDE), tile)


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("type_name", ["bf16", "fp16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_tiles(direction, type_name):
    start = f"tma_windows_{direction}_{type_name}_"
    tiles = [name.removeprefix(start) for name in gemm_kernels() if name.startswith(start)]
    assert len(tiles) == 8
    strided = (2, 72, 11, 13, 200, 3, 3, dict(pad=(1, 1), stride=(2, 2)))
    for seed, tile in enumerate(tiles):
        for sizes in (WIDE, strided):
            check_gemm(problem_of(direction, sizes, type_name), tile, seed=seed)
            check_gemm(problem_of(direction, sizes, type_name), tile, row_blocks=1, seed=seed)


# The filter stays in shared memory if all its taps' tiles fit, but not where phases have different taps.
@pytest.mark.parametrize(
    "filter, stride, tile, resident",
    [(1, 2, "64x64_3", True), (2, 1, "64x64_6", True), (3, 1, "64x64_6", False), (2, 2, "64x64_6", True)],
)
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
def test_several_tiles_of_rows_a_block(direction, filter, stride, tile, resident):
    resident = resident and (direction == "forward" or stride == 1)
    sizes = (3, 40, 15, 17, 72, filter, filter, dict(stride=(stride, stride)))
    if direction == "input_grad":
        sizes = (3, 72, 15, 17, 40, *sizes[5:])
    for row_blocks in (1, 2):
        for seed in range(2):
            assert check_gemm(problem_of(direction, sizes), tile, row_blocks=row_blocks, seed=seed) == resident


@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_splits(direction, splits):
    """Parts of the depth begin and end within taps."""
    sizes = (1, 72, 23, 15, 40, 3, 3, dict(pad=(1, 1))) if direction == "weight_grad" else WIDE
    check_gemm(problem_of(direction, sizes), "64x64_3", splits=splits, seed=splits)


def test_splits_of_one_pixel_with_stride():
    """Only one tap of nine is used."""
    check_gemm(problem_of("input_grad", (3, 16, 1, 1, 264, 3, 3, dict(pad=(1, 1), stride=(2, 2)))), "64x64_3", splits=2)


def refusal(direction, *sizes, type_name="bf16", layout="nhwc", pad=(0, 0), stride=(1, 1), dilation=(1, 1), groups=1):
    kernel = gemm_kernels()[f"tma_windows_{direction}_bf16_64x64_3_cooperative"]
    geometry = [*sizes, *pad, *stride, *dilation, groups]
    numbers = plans.numbers_of(geometry, direction, type_name, layout)
    sentence = planner().plan_gemm(numbers, kernel, 0, 1, 1, (ctypes.c_void_p * 6)(), None, None, None)
    return sentence.decode()


def test_refusals():
    small = (1, 8, 300, 9, 8, 3, 3)
    assert refusal("forward", *small, type_name="fp32") == "it computes fp16 and bf16 only"
    assert refusal("forward", *small, groups=2) == "it computes one group only"
    unaligned = "the channels of input and output are no multiples of 16 bytes"
    assert refusal("forward", 1, 12, 9, 9, 8, 3, 3) == unaligned
    in_planes = "in NCHW it is for filters of 1x1 without padding and strides"
    assert refusal("forward", *small, layout="nchw") == in_planes
    assert refusal("forward", 1, 8, 1, 1, 8, 1, 3, layout="nchw", pad=(0, 1)) == in_planes
    assert refusal("forward", *small, stride=(9, 1)) == "the copy engine's windows are at most 8 pixels apart"
    assert refusal("input_grad", *small, stride=(1, 3)) == "it computes input_grad for strides up to 2"
    begin = "the copy engine's windows begin at most 128 pixels outside of an image"
    assert refusal("forward", *small, pad=(129, 0)) == begin
    assert refusal("weight_grad", *small, dilation=(70, 1)) == begin
    assert refusal("input_grad", *small, dilation=(70, 1)) == begin
    assert refusal("forward", 1, 8, 600, 9, 8, 3, 3, pad=(128, 0), dilation=(128, 1)) == (
        "the copy engine's windows have at most 256 pixels along an axis"
    )
    assert refusal("forward", 1 << 13, 8, 512, 512, 8, 3, 3) == "it counts elements by 32 bits"
    # The largest possible values.
    for direction in DIRECTIONS:
        check_gemm(Problem(direction, "bf16", 1, 8, 250, 1, 8, 3, 1, pad=(127, 0), dilation=(127, 1)), "64x64_3")


# Each block loads half of the lines of the shared operand, beginning at its own position.
@pytest.mark.parametrize("shared", [ROWS, COLUMNS])
@pytest.mark.parametrize("stride", [2, *slow(1)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_pairs_of_blocks(direction, stride, shared):
    for seed, (tile, c) in enumerate((("64x64_3", 72), ("128x64_6", 40), ("128x192_4", 72))):
        problem = problem_of(direction, (3, c, 13, 14, 136, 3, 3, dict(pad=(1, 1), stride=(stride, stride))))
        check_gemm(problem, tile, shared=shared, seed=seed)
        if direction != "weight_grad":
            check_gemm(problem, tile, shared=shared, row_blocks=2, seed=seed)
        if direction != "input_grad" or stride == 1:
            check_gemm(problem, tile, shared=shared, splits=2, seed=seed)


@st.composite
def problems(draw) -> Problem:
    direction = draw(st.sampled_from(DIRECTIONS))
    r, s = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    pads = draw(st.integers(0, 3)), draw(st.integers(0, 4))
    most = 2 if direction == "input_grad" else 4
    strides = draw(st.integers(1, most)), draw(st.integers(1, most))
    dilations = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 1, 1, 2]))
    least = (
        max(1, dilation * (filter - 1) + 1 - 2 * pad)
        for filter, pad, dilation in zip((r, s), pads, dilations, strict=True)
    )
    h, w = (draw(st.integers(size, max(17, size))) for size in least)
    c, k = (8 * draw(st.sampled_from([1, 1, 2, 3, 5, 8, 9, 17])) for _ in "ck")
    type_name, n = draw(st.sampled_from(["bf16", "fp16"])), draw(st.integers(1, 3))
    return Problem(direction, type_name, n, c, h, w, k, r, s, pad=pads, stride=strides, dilation=dilations)


@emulator.without_sanitizers
@settings(max_examples=examples(150))
@given(
    problem=problems(),
    shared=st.sampled_from([NOTHING, NOTHING, ROWS, COLUMNS]),
    row_blocks=st.sampled_from([1, 2, 1000]),
    seed=st.integers(0, 1000),
)
def test_whatever_is_planned_is_right(problem, shared, row_blocks, seed):
    check_gemm(problem, "64x64_3", shared=shared, row_blocks=row_blocks, seed=seed)
