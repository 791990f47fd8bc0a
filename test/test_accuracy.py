"""Rounding errors of long sums stay those of sums in runs (csrc/cpu/simd/runs.h).

A chain of additions has several times as much, and more than twice PyTorch's. benchmarks/accuracy.py compares with
PyTorch itself.
"""

import math

import pytest
import torch
from cases import Case, directions, expected_rounding, in_double, solvers_for, strided, values

from torch_reformer import config

LONG_SUMS = {
    "one weight": ("W", Case(n=4, c=1, h=32, w=32, k=1, r=1, s=1)),
    "few weights": ("W", Case(n=4, c=3, h=28, w=30, k=5, r=1, s=1)),
    "3x3 weights": ("W", Case(n=4, c=16, h=28, w=28, k=9, padding=(1, 1))),
    "grouped weights": ("W", Case(n=4, c=24, h=28, w=28, k=24, groups=4, padding=(1, 1))),
    "depthwise weights": ("W", Case(n=4, c=20, h=28, w=28, k=20, groups=20, padding=(1, 1))),
    "5x5 depthwise weights": ("W", Case(n=2, c=20, h=40, w=40, k=20, r=5, s=5, groups=20, padding=(2, 2))),
    "1x1": ("F", Case(n=2, c=900, h=6, w=5, k=40, r=1, s=1)),
    "1x1, one channel": ("F", Case(n=2, c=2000, h=6, w=5, k=1, r=1, s=1)),
    "3x3": ("F", Case(n=2, c=120, h=9, w=10, k=24, padding=(1, 1))),
    "3x3 gradient": ("B", Case(n=2, c=24, h=9, w=10, k=120, padding=(1, 1))),
    "grouped gradient": ("B", Case(n=2, c=60, h=9, w=10, k=300, groups=3, padding=(1, 1))),
    "gradient of depth multiplier": ("B", Case(n=2, c=3, h=9, w=10, k=300, groups=3, padding=(1, 1))),
    "large filter": ("F", Case(n=2, c=4, h=34, w=34, k=4, r=31, s=31, groups=4, padding=(15, 15))),
}


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_sums_round_like_sums_in_runs(name, layout):
    direction, case = LONG_SUMS[name]
    errors = {}
    elements = 0
    draws = 40 if name == "one weight" else 4
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        sizes = case.input_size, case.weight_size, case.output_size
        x, w, y = (strided(values(size, torch.float32, generator, False), layout) for size in sizes)
        (first, second), run = directions(case, x, w, y)[direction]
        exact = in_double(case, direction, first, second)
        spread = in_double(case, direction, first.double().square(), second.double().square())
        for solver in solvers_for(case.problem(direction, first, second)):
            if not solver.startswith(("aten", "winograd")):
                with config(force=solver):
                    squares = (run(first, second) - exact).square() / spread
                errors[solver] = errors.get(solver, 0) + squares.sum().item()
        elements += exact.numel()
    # Half as much again for kernels with somewhat longer runs, plus three standard deviations for few elements.
    allowed = expected_rounding("", case.summed(direction)) * (1.5 + 3 / math.sqrt(elements))
    actual = {solver: math.sqrt(error / elements) / torch.finfo(torch.float32).eps for solver, error in errors.items()}
    assert max(actual.values()) <= allowed, f"{actual}, allowed {allowed:.2f}"
