"""Runs every candidate on sample problems on this machine, and compares the results with exact ones.

The problems are small ones of all directions, data types, layouts and kinds, or those of a file. Meant for owners of a
GPU on which the candidates have never run, such as MIOpen's on AMD GPUs (docs/selector.md).
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm

from ..problem import DIRECTIONS, LAYOUTS, ConvProblem
from ..runtime import native
from ..selector.problems import read_problems
from .measure import applicable, check, operands
from .workload import device_name, usable_device

_TYPES = ("FP32", "FP16", "BF16")
# n, c, h, w, k, r, s, padding, stride, dilation, groups
_GEOMETRIES = (
    (4, 64, 14, 14, 128, 1, 1, 0, 1, 1, 1),
    (4, 64, 14, 14, 128, 1, 1, 0, 2, 1, 1),
    (4, 32, 28, 28, 64, 3, 3, 1, 1, 1, 1),
    (4, 32, 28, 28, 64, 3, 3, 1, 2, 1, 1),
    (4, 32, 14, 14, 32, 3, 3, 2, 1, 2, 1),
    (4, 16, 28, 28, 32, 5, 5, 2, 1, 1, 1),
    (4, 3, 56, 56, 64, 7, 7, 3, 2, 1, 1),
    (4, 32, 14, 14, 32, 3, 3, 1, 1, 1, 32),
    (4, 64, 14, 14, 64, 3, 3, 1, 1, 1, 4),
)


def samples() -> Iterator[ConvProblem]:
    """Problems of all kinds, with less than 0.2 GFLOP each."""
    for geometry, direction, dtype, layout in itertools.product(_GEOMETRIES, DIRECTIONS, _TYPES, LAYOUTS):
        n, c, h, w, k, r, s, padding, stride, dilation, groups = geometry
        moves = (padding, padding, stride, stride, dilation, dilation)
        yield ConvProblem(n, c, h, w, k, r, s, *moves, groups, direction, dtype, layout)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--problems",
        type=Path,
        metavar="FILE",
        help="problems to run instead of the samples, in the forms that `collect` accepts",
    )
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu (default), or cuda for GPUs of either vendor")


def run(options: argparse.Namespace) -> int:
    """Return status 0; 1 if a solver failed or computed wrong results."""
    device = usable_device(options.device, int(os.environ.get("LOCAL_RANK", 0)))
    problems = read_problems(options.problems) if options.problems else list(samples())
    ran: Counter[str] = Counter()
    wrong: list[tuple[ConvProblem, str, str]] = []
    for problem in tqdm(problems, unit="problem", dynamic_ncols=True):
        try:
            work = operands(problem, device)
        except ValueError as error:
            tqdm.write(f"left out: {problem}: {error}", file=sys.stderr)
            continue
        solvers = applicable(problem, device)
        with torch.inference_mode():
            failed = check(work, solvers)
        ran.update(solvers.keys())
        wrong += [(problem, solver, what) for solver, what in failed.items()]
    failures = Counter(solver for _, solver, _ in wrong)
    width = max(map(len, ran), default=0)
    print(f"{len(problems)} problems on {device_name(device)}")
    for solver in native.solver_names():
        if ran[solver]:
            bad = f", {failures[solver]} WRONG" if failures[solver] else ""
            print(f"  {solver:{width}}  {ran[solver] - failures[solver]:4} right{bad}")
    for problem, solver, what in wrong:
        print(f"WRONG: {problem}: {solver}: {what}", file=sys.stderr)
    return 1 if wrong else 0
