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
from ..selector.problems import Task, read_tasks
from .measure import applicable, check, operands
from .measure_epilogue import check_epilogue
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


# rows, columns, depth
_PRODUCTS = ((384, 256, 128), (520, 392, 72))
_PROGRAMS = ("", "bias.gelu", "bias.store.gelu", "bias.residual", "gelu_grad")


def products() -> Iterator[Task]:
    """Matrix products of all transposes, and forward ones with programs."""
    for (rows, columns, depth), dtype in itertools.product(_PRODUCTS, ("BF16", "FP16")):
        for transposes in ("tn", "nn", "nt"):
            problem = ConvProblem.parse(f"gemm-{rows}-{columns}-{depth}-{transposes}-{dtype}")
            yield from (Task(problem, text) for text in _PROGRAMS if not text or transposes == "tn")


def _checked(task: Task, device: torch.device) -> tuple[list[str], dict[str, str]]:
    """Solvers that computed a task, and what was wrong with the results of each.

    Raises:
        ValueError: if the task can't be run.
    """
    if task.epilogue:
        kernels, wrong = check_epilogue(*task, device)
        named = {way: way if task.problem.is_product else kernel for way, kernel in kernels.items()}
        return list(named.values()), {named[way]: what for way, what in wrong.items()}
    work, solvers = operands(task.problem, device), applicable(task.problem, device)
    with torch.inference_mode():
        return list(solvers), check(work, solvers)


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
    tasks = read_tasks(options.problems) if options.problems else [*map(Task, samples()), *products()]
    ran: Counter[str] = Counter()
    wrong: list[tuple[Task, str, str]] = []
    for task in tqdm(tasks, unit="problem", dynamic_ncols=True):
        try:
            solvers, failed = _checked(task, device)
        except ValueError as error:
            if options.problems:
                tqdm.write(f"left out: {task}: {error}", file=sys.stderr)
            continue
        ran.update(solvers)
        wrong += [(task, solver, what) for solver, what in failed.items()]
    failures = Counter(solver for _, solver, _ in wrong)
    width = max(map(len, ran), default=0)
    print(f"{len(tasks)} problems on {device_name(device)}")
    for solver in native.solver_names():
        if ran[solver]:
            bad = f", {failures[solver]} WRONG" if failures[solver] else ""
            print(f"  {solver:{width}}  {ran[solver] - failures[solver]:4} right{bad}")
    for task, solver, what in wrong:
        print(f"WRONG: {task}: {solver}: {what}", file=sys.stderr)
    return 1 if wrong else 0
