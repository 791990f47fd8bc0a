"""Convolution by the implicit GEMM kernels, emulated: exact on small integers."""

import ctypes

import pytest
import torch
from marks import slow

import emulator
from emulator import plans
from emulator.implicit_gemm import PATHS, kernels, name_of, planner, tiles_of
from emulator.plans import DIRECTIONS, Problem

pytestmark = emulator.needed


def run(problem, kernel, splits, *, warp, tiles=1, seed=0, defines=()):
    """The kernel's result in NCHW."""
    x, y, filter = map(problem.tensor, (problem.x, problem.y, problem.filter))
    values = problem.bias.to(problem.type[0])
    result = problem.no_result()
    index = kernels()[kernel]
    args, finish = ((ctypes.c_char * size())() for size in (planner().args_bytes, planner().finish_args_bytes))
    numbers = (ctypes.c_int64 * 15)()

    def plan(workspace):
        bias = values.data_ptr() if problem.direction == 0 else None
        addresses = [x.data_ptr(), y.data_ptr(), filter.data_ptr(), bias, result.data_ptr(), workspace]
        pointers = (ctypes.c_void_p * 6)(*addresses)
        sentence = planner().plan(problem.numbers, index, splits, 1, tiles, warp, pointers, args, finish, numbers)
        if sentence is not None:
            raise ValueError(sentence.decode())

    plan(None)
    workspace = torch.full([numbers[14] // 4], torch.nan)
    plan(workspace.data_ptr())
    launches = [(kernel, args, numbers[:5])]
    if numbers[12] > 1:
        launches.append((planner().finish_name(problem.type[1]).decode(), finish, numbers[6:11]))
    for name, arguments, shape in launches:
        entry = planner().kernel_arguments(kernels()[name]).decode()
        plans.launch("gemm/implicit_gemm", name, entry, arguments, shape, seed=seed, warp=warp, defines=defines)
    return result


def check(problem, kernel, splits, path, *, tiles=1, seed=0):
    warp, defines = PATHS[path]
    problem.check(run(problem, kernel, splits, warp=warp, tiles=tiles, seed=seed, defines=defines))


# n, c, h, w, k, r, s
GENERAL = {
    "3x3": ((2, 24, 7, 9, 40, 3, 3), dict(pad=(1, 1))),
    "3x3 strides": ((1, 72, 9, 8, 24, 3, 3), dict(pad=(1, 1), stride=(2, 2))),
    "strides 2, 3": ((1, 16, 10, 11, 72, 3, 5), dict(pad=(0, 2), stride=(2, 3))),
    "dilation": ((1, 8, 9, 12, 16, 3, 3), dict(pad=(2, 1), dilation=(2, 3))),
    "dilation and strides": ((1, 16, 11, 12, 8, 3, 2), dict(pad=(2, 3), stride=(2, 4), dilation=(2, 3))),
    "groups": ((2, 48, 5, 6, 24, 3, 1), dict(pad=(1, 0), groups=3)),
    "5x5": ((1, 8, 6, 6, 136, 5, 5), dict(pad=(2, 2))),
    "filter below strides": ((1, 16, 7, 9, 16, 1, 2), dict(stride=(3, 4))),
    "lines without padding": ((2, 24, 6, 11, 16, 3, 4), dict(pad=(1, 0), stride=(2, 1))),
    "padded 1x1": ((1, 16, 3, 4, 16, 1, 1), dict(pad=(1, 2))),
}
POINTWISE = {
    "1x1": ((1, 72, 9, 9, 88, 1, 1), {}),
    "few channels": ((3, 8, 7, 5, 16, 1, 1), {}),
    "groups": ((1, 48, 5, 6, 32, 1, 1), dict(groups=2)),
}
STRIDED = {"strides": ((2, 40, 7, 9, 72, 1, 1), dict(stride=(2, 3)))}


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", GENERAL)
@pytest.mark.parametrize("type_name", ["bf16", *slow("fp16", "fp32")])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("path", ["mma_sync", "mfma"])
def test_general(path, direction, type_name, name, splits):
    sizes, others = GENERAL[name]
    problem = Problem(direction, type_name, *sizes, **others)
    check(problem, name_of(direction, type_name, "general", "64x32_2x2_4"), splits, path)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("name", [*POINTWISE, *STRIDED])
@pytest.mark.parametrize("type_name", ["bf16", *slow("fp16", "fp32")])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("path", ["mma_sync", "mfma"])
def test_pointwise(path, direction, type_name, name, splits):
    sizes, others = {**POINTWISE, **STRIDED}[name]
    problem = Problem(direction, type_name, *sizes, **others)
    kind = "general" if name in STRIDED and direction == "weight_grad" else "pointwise"
    check(problem, name_of(direction, type_name, kind, "32x32_2x2_4"), splits, path, seed=1)


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("kind", ["general", "pointwise"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("path", ["mma_sync", "mfma"])
def test_all_tiles(path, direction, kind):
    sizes = (1, 136, 12, 13, 136, 3, 3) if kind == "general" else (1, 200, 17, 16, 136, 1, 1)
    problem = Problem(direction, "bf16", *sizes, pad=(1, 1) if kind == "general" else (0, 0))
    for tile in tiles_of(direction, "bf16"):
        check(problem, name_of(direction, "bf16", kind, tile), 1, path)


# Rows that don't fill the last tile, a last block with fewer tiles, and a stride's phases, which differ in rows and in
# steps, some without any.
@pytest.mark.parametrize("tiles", [2, 3, *slow(100)])
@pytest.mark.parametrize("name", [*GENERAL, *POINTWISE, *STRIDED, "one step", "many steps"])
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
def test_several_tiles_a_block(direction, name, tiles):
    several = {"one step": ((3, 16, 9, 9, 40, 1, 1), {}), "many steps": ((2, 328, 9, 9, 336, 1, 1), {})}
    sizes, others = {**GENERAL, **POINTWISE, **STRIDED, **several}[name]
    type_name = "fp32" if tiles == 3 else "bf16"
    problem = Problem(direction, type_name, *(2 * sizes[0], *sizes[1:]), **others)
    kind = "general" if name in GENERAL else "pointwise"
    check(problem, name_of(direction, type_name, kind, "32x32_2x2_4"), 1, "mma_sync", tiles=tiles, seed=tiles)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_bf16_of_gfx908(direction):
    problem = Problem(direction, "bf16", 1, 72, 9, 8, 24, 3, 3, pad=(1, 1), stride=(2, 2))
    check(problem, name_of(direction, "bf16", "general", "64x32_2x2_4"), 2, "mfma_gfx908")


@pytest.mark.parametrize(
    ("direction", "sizes", "warp", "most"),
    [
        ("forward", (32, 24, 56, 56, 144, 1, 1), 32, 12),
        ("input_grad", (32, 32, 112, 112, 64, 3, 3), 32, 48),
        ("forward", (32, 256, 7, 7, 64, 1, 1), 32, 1),  # fewer tiles than blocks that run at once
        ("forward", (32, 24, 56, 56, 144, 1, 1), 64, 1),  # no asynchronous copies
        ("weight_grad", (32, 24, 56, 56, 144, 1, 1), 32, 1),
    ],
)
def test_tiles_a_block(direction, sizes, warp, most):
    kernel = kernels()[name_of(direction, "bf16", "general", "64x64_4x1_4")]
    problem = plans.numbers_of([*sizes, 0, 0, 1, 1, 1, 1, 1], direction, "bf16")
    chosen = planner().tiles_worth_trying(problem, kernel, warp, 132)
    assert chosen == 1 if most == 1 else 2 <= chosen <= most

    def blocks(tiles):
        plan, args, finish = (ctypes.c_int64 * 15)(), *((ctypes.c_char * 4096)() for _ in range(2))
        assert planner().plan(problem, kernel, 1, 1, tiles, warp, (ctypes.c_void_p * 6)(), args, finish, plan) is None
        return plan[0] * plan[1]

    assert (blocks(1) + chosen - 1) // chosen <= blocks(chosen) <= max(blocks(1) // max(chosen - 1, 1), 1)


def test_refusals():
    def complaint(type_name, kernel, *sizes, direction="forward", **others):
        with pytest.raises(ValueError) as error:
            run(Problem(direction, type_name, *sizes, **others), kernel, 1, warp=32)
        return str(error.value)

    general, pointwise = (name_of("forward", "bf16", kind, "64x64_2x2_4") for kind in ("general", "pointwise"))
    assert "multiples" in complaint("bf16", general, 1, 12, 5, 5, 8, 3, 3)
    assert complaint("bf16", pointwise, 1, 8, 5, 5, 8, 3, 3) == "the kernel is for filters of 1x1 without padding"
    assert "another direction or type" in complaint("fp16", general, 1, 8, 5, 5, 8, 3, 3)
    assert "strides up to 4" in complaint("bf16", general, 1, 8, 9, 9, 8, 3, 3, direction="input_grad", stride=(5, 1))
