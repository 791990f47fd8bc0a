"""Made-up timings of matrix products, by a rule like that of real kernels: a kernel's tiles fill the GPU several times,
bytes or arithmetic bind, and a program is hidden in ping-pong kernels, or takes time of its own after the product."""

from __future__ import annotations

import math
import random

from torch_reformer import ConvProblem
from torch_reformer.runtime import native
from torch_reformer.selector.epilogues import program_of
from torch_reformer.selector.problems import Task
from torch_reformer.selector.timings import Record, Timing

SOLVERS = {
    "gpu_tma_gemm_128x256": (256, False),
    "gpu_tma_gemm_128x128": (128, False),
    "gpu_tma_gemm_pingpong_128x192": (192, True),
    "gpu_tma_gemm_pingpong_128x128": (128, True),
}
_GB_PER_S = {"sm_90": 4800.0, "sm_90:H100": 3352.0}
_TEXTS = ("", "bias.relu", "bias.gelu", "bias.store.gelu", "bias.residual", "gelu_grad")


def tasks(count: int, seed: int) -> list[Task]:
    rng, found = random.Random(seed), {}
    while len(found) < count:
        rows, (columns, depth) = rng.randint(16, 400) * 64, (rng.randint(3, 64) * 64 for _ in range(2))
        found[Task(ConvProblem.parse(f"gemm-{rows}-{columns}-{depth}-tn-BF16"), rng.choice(_TEXTS))] = None
    return list(found)


def _us(task: Task, device: str) -> dict[str, float]:
    p, gb_per_s = task.problem, _GB_PER_S[device]
    rows, columns, depth = p.h, p.k, p.c
    program = program_of(task.epilogue) if task.epilogue else None
    full = sum(kind == "full" for kind in program.kinds) if program else 0
    stored = len(program.outputs) if program else 1
    slots = 20 * ("gelu" in task.epilogue) + 3
    operands, result = 2 * depth * (rows + columns), 2 * rows * columns
    of_bytes = (operands + result * (full + stored)) / (gb_per_s * 800)
    arithmetic = p.flops / 650e6
    of_program = rows * columns * slots * 0.028e-6 if program else 0.0
    alone = max(arithmetic, (operands + result) / (gb_per_s * 800)) + 3
    separate = (result * (1 + full + stored)) / (gb_per_s * 800) + 3 if program else 0.0
    times = {"aten": alone + separate}
    for name, (width, pingpong) in SOLVERS.items():
        tiles = math.ceil(rows / 128) * math.ceil(columns / width)
        full_waves = tiles / 132
        padded = arithmetic * 1.03 * math.ceil(full_waves) / full_waves * math.ceil(columns / width) * width / columns
        multiply = max(padded, 0.5 * (padded + of_program)) if pingpong else padded + of_program
        times[name] = max(multiply, of_bytes) + 3
    return times


def made_up_records(of: list[Task], device: str) -> list[Record]:
    """Records on an H200 (sm_90) or an H100 (sm_90:H100)."""
    assert device == native.device(device)
    return [
        Record(str(task), tuple(Timing(name, us / 1e3, 0, "x") for name, us in _us(task, device).items()))
        for task in of
    ]
