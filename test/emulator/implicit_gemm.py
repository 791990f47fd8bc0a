"""Implicit GEMM kernels, launched as in implicit_gemm_launch.h."""

import ctypes
import functools

from emulator import conv_programs, plans
from emulator.plans import TYPES

PATHS = {"mma_sync": (32, ()), "mfma": (64, ()), "mfma_gfx908": (64, ("REFORMER_MFMA_BF16_PAIRS",))}


@functools.cache
def planner() -> ctypes.CDLL:
    loaded = plans.library("implicit_gemm_launch")
    for function in (loaded.kernel_name, loaded.kernel_arguments, loaded.finish_name, loaded.plan):
        function.restype = ctypes.c_char_p
    return conv_programs.declare(loaded, "plan_with_program")


@functools.cache
def kernels() -> dict[str, int]:
    return {planner().kernel_name(i).decode(): i for i in range(planner().kernel_count())}


def name_of(direction, type_name, kind, tile):
    return f"implicit_gemm_{direction}_{type_name}_{kind}_{tile}"


def tiles_of(direction, type_name) -> list[str]:
    """All tiles of the problem."""
    start = name_of(direction, type_name, "general", "")
    return [name.removeprefix(start) for name in kernels() if name.startswith(start)]


def with_program(problem, tile, path="mma_sync", *, tiles=1) -> conv_programs.Kernel:
    """The forward kernel with a program; tiles: per row, per block."""
    type_name = next(name for name, (_, number) in TYPES.items() if number == problem.type[1])
    kind = "pointwise" if list(problem.numbers[5:9]) == [1, 1, 0, 0] else "general"
    index = kernels()[name_of("forward", type_name, kind, tile)]
    warp, defines = PATHS[path]

    def plan(numbers, operands, given):
        return planner().plan_with_program(numbers, operands, given, index, tiles, warp)

    return conv_programs.Kernel(planner(), plan, warp, defines)
