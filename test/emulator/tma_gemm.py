"""Run TMA GEMM kernels, for filters of any size, as tma_gemm_launch.h launches them; also programs in TMA GEMM and TMA
depthwise kernels."""

import ctypes
import functools

import torch

from emulator import conv_programs, plans
from emulator.plans import DIRECTIONS


@functools.cache
def planner() -> ctypes.CDLL:
    loaded = plans.library("tma_launch")
    for name in ("name", "file", "arguments"):
        getattr(loaded, f"gemm_kernel_{name}").restype = ctypes.c_char_p
    for name in ("finish_name", "finish_arguments", "plan_gemm"):
        getattr(loaded, name).restype = ctypes.c_char_p
    for name in ("depthwise_name", "depthwise_arguments", "plan_depthwise"):
        getattr(loaded, name).restype = ctypes.c_char_p
    return conv_programs.declare(loaded, "plan_gemm_program", "plan_depthwise_program")


@functools.cache
def gemm_kernels() -> dict[str, int]:
    return {planner().gemm_kernel_name(i).decode(): i for i in range(planner().gemm_kernel_count())}


def kernel_of(problem, tile):
    """The kernel's name. tile: such as "128x128_6_pingpong"; if it doesn't say so, consumers are cooperative."""
    type_name = {torch.bfloat16: "bf16", torch.float16: "fp16"}[problem.type[0]]
    r, s, *pads_and_strides = problem.numbers[5:11]
    file = "tma_gemm" if [r, s, *pads_and_strides] == [1, 1, 0, 0, 1, 1] else "tma_windows"
    planes = problem.layout == "nchw" and problem.x[0, 0].numel() > 1
    layout = "_nchw" if planes else ""
    tile = tile if tile.endswith(("pingpong", "cooperative")) else f"{tile}_cooperative"
    return f"{file}_{DIRECTIONS[problem.direction]}{layout}_{type_name}_{tile}"


NOTHING, ROWS, COLUMNS = range(3)  # what both blocks of a cluster share


def with_program(problem, tile, *, shared=NOTHING, row_blocks=1000) -> conv_programs.Kernel:
    index = gemm_kernels()[kernel_of(problem, tile)]

    def plan(numbers, operands, given):
        return planner().plan_gemm_program(numbers, operands, given, index, shared, row_blocks)

    return conv_programs.Kernel(planner(), plan)


def depthwise_with_program(tile, multiprocessors=1) -> conv_programs.Kernel:
    """The depthwise kernel with a program; tile: strips across and down, rows, images."""
    numbers_of_tile = (ctypes.c_int32 * 4)(*tile)

    def plan(numbers, operands, given):
        return planner().plan_depthwise_program(numbers, operands, given, numbers_of_tile, multiprocessors)

    return conv_programs.Kernel(planner(), plan)


def check_gemm(problem, tile, *, shared=NOTHING, row_blocks=1000, splits=1, seed=0):
    """Compare; return True if the second operand's tiles were resident in shared memory."""
    kernel = kernel_of(problem, tile)
    index = gemm_kernels()[kernel]
    x, y, filter = map(problem.tensor, (problem.x, problem.y, problem.filter))
    values = problem.bias.to(problem.type[0])
    result = problem.no_result()
    sizes = planner().gemm_args_bytes(index), planner().finish_args_bytes()
    args, finish = ((ctypes.c_char * size)() for size in sizes)
    numbers = (ctypes.c_int64 * 14)()

    def plan(workspace):
        bias = values.data_ptr() if problem.direction == 0 else None
        addresses = [x.data_ptr(), y.data_ptr(), filter.data_ptr(), bias, result.data_ptr(), workspace]
        pointers = (ctypes.c_void_p * 6)(*addresses)
        sentence = planner().plan_gemm(
            problem.numbers, index, shared, row_blocks, splits, pointers, args, finish, numbers
        )
        assert sentence is None, sentence

    plan(None)
    workspace = torch.full([numbers[12] // 4], torch.nan)
    plan(workspace.data_ptr())
    assert (numbers[12] > 0) == (splits > 1)
    file, entry = (f(index).decode() for f in (planner().gemm_kernel_file, planner().gemm_kernel_arguments))
    assert numbers[5] == (1 if shared == NOTHING else 2)
    plans.launch(file, kernel, entry, args, numbers[:5], seed=seed, cluster=numbers[5])
    if splits > 1:
        name, entry = (f(problem.type[1]).decode() for f in (planner().finish_name, planner().finish_arguments))
        plans.launch("gemm/implicit_gemm", name, entry, finish, numbers[6:11], seed=seed)
    problem.check(result)
    return bool(numbers[13])
