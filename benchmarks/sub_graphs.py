"""Times forward and backward of small functions whose operators move elements by an index (sub_graph_cases.py), or
choose them (choice_cases.py), by PyTorch, by torch.compile and by this backend, on a GPU: each is captured in a CUDA
graph, and their replays take turns.

A function fails if its results or gradients are further from fp64's than twice PyTorch's, plus twice the rounding of
its type, or if two runs of this backend differ in a bit. Each case has a process, so that all compile side by side.

    python benchmarks/sub_graphs.py --csv benchmarks/results/h200/sub_graphs.csv
    python benchmarks/sub_graphs.py --cases choices --csv benchmarks/results/h200/sub_graphs-choices.csv
    python benchmarks/sub_graphs.py --only Swin,avg_pool
    python benchmarks/sub_graphs.py --device cpu --smaller 64 --only Swin  # values only
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import side_by_side
import torch
from choice_cases import choice_cases
from results import Row, geomean, write_csv
from side_by_side import Turn
from sub_graph_cases import Case, Inputs, cases
from torch import Tensor

from torch_reformer.tuning import timing
from torch_reformer.tuning.workload import device_name, usable_device

CASES = {"indices": cases, "choices": choice_cases}
MOST_SECONDS = 240  # for compiling all cases
SIDES: dict[str, Callable] = {
    "torch": lambda function: function,
    "compiled": torch.compile,
    "reformer": lambda function: torch.compile(function, backend="reformer"),
}


def step(case: Case, function: Callable, grads: list[Tensor]) -> list[Tensor]:
    """Results and the gradients of the inputs."""
    results = function(*case.inputs)
    results = list(results) if isinstance(results, tuple) else [results]
    wanted = [each for each in case.inputs if each.requires_grad]
    return [*results, *torch.autograd.grad(results, wanted, grads)]


def in_double(case: Case) -> Case:
    """The case in fp64, row-major: PyTorch's average pool for GPUs ignores the padding in its gradient of channels_last
    images (2.11)."""
    inputs = (
        each.detach().double().contiguous().requires_grad_(each.requires_grad) if each.is_floating_point() else each
        for each in case.inputs
    )
    return Case(case.function, tuple(inputs))


def error(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """The norm of each tensor's difference from fp64's over the norm of that."""
    pairs = zip(found, exact, strict=True)
    return [((a.double() - b).norm() / b.norm().clamp_min(1e-30)).item() for a, b in pairs]


def is_right(case: Case, functions: dict[str, Callable], grads: list[Tensor]) -> str:
    """An empty text, or how this backend's values are wrong."""
    wide = in_double(case)
    exact = [each.detach() for each in step(wide, wide.function, [each.double() for each in grads])]
    eager, once, again = (
        [each.detach().clone() for each in step(case, functions[side], grads)]
        for side in ("torch", "reformer", "reformer")
    )
    for i, (mine, theirs) in enumerate(zip(error(once, exact), error(eager, exact), strict=True)):
        rounding = 2 * torch.finfo(once[i].dtype).eps  # of the result, and of what it is computed from
        if not mine <= 2 * theirs + rounding:
            return f"tensor {i} is {mine:.2g} away from fp64, PyTorch's is {theirs:.2g}"
    return "" if all(map(torch.equal, once, again)) else "two runs differ"


class Measured(NamedTuple):
    """How the values are wrong, if they are; times in us by side; bytes that must be moved."""

    problem: str
    times: dict[str, list[float]]
    least: int


def measure(name: str, turn: Turn, options: argparse.Namespace) -> Measured:
    """Compile a case, compare its values, and time it on a GPU."""
    device = usable_device(options.device)
    torch.manual_seed(0)
    case = CASES[options.cases](Inputs(device, options.smaller))[name]()
    functions = {side: wrap(case.function) for side, wrap in SIDES.items()}
    with torch.no_grad():  # a graph of autograd's would tie the inputs to another stream than the captured one
        results = case.function(*case.inputs)
    grads = [torch.randn_like(each) for each in (results if isinstance(results, tuple) else (results,))]
    problem = is_right(case, functions, grads)
    calls = {side: functools.partial(step, case, function, grads) for side, function in functions.items()}
    times: dict[str, list[float]] = {}
    if device.type == "cuda":
        calls["compiled"]()
        torch.cuda.empty_cache()
        with turn.taken():
            times = timing.interleaved(calls, seconds=options.seconds, most=200, device=device)
    return Measured(problem, times, case.least_bytes)


def copy_bytes_a_second(device: torch.device) -> float:
    """Bytes that a copy of a GiB reads and writes in a second."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    us = timing.interleaved({"copy": lambda: target.copy_(source)}, device=device)["copy"]
    return 2 * source.numel() / statistics.median(us) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", choices=CASES, default="indices", help="which list")
    parser.add_argument("--only", default="", help="cases with one of these texts in their names")
    parser.add_argument("--device", default="cuda", help="on a CPU values are compared, and nothing is timed")
    parser.add_argument("--smaller", type=int, default=1, help="divides all batches")
    parser.add_argument("--seconds", type=float, default=0.3, help="for the rounds of a case")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    device = usable_device(options.device)
    everything = CASES[options.cases](Inputs(device))
    names = [name for name in everything if not options.only or any(t in name for t in options.only.split(","))]
    start = time.time()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # of each process
    by_name = dict(side_by_side.results(functools.partial(measure, options=options), names, MOST_SECONDS))
    bandwidth = copy_bytes_a_second(device) if device.type == "cuda" else float("nan")
    rows: list[Row] = []
    ratios, shares_of_copy, failed = [], [], {}
    print(f"copy: {bandwidth / 1e12:.2f} TB/s; {time.time() - start:.0f} s")
    print("| case | us: torch | compiled | reformer | over compiled | least us | share of the copy's bandwidth |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        found = by_name[name]
        if isinstance(found, Exception):
            failed[name] = str(found)
            continue
        problem, times, least = found
        if problem:
            failed[name] = problem
        if not times:
            continue
        median = {side: statistics.median(us) for side, us in times.items()}
        least_us = least / bandwidth * 1e6
        ratios.append(median["compiled"] / median["reformer"])
        shares_of_copy.append(least_us / median["reformer"])
        cells = [f"{median[side]:.1f}" for side in SIDES]
        print(f"| {name} | {' | '.join(cells)} | {ratios[-1]:.2f} | {least_us:.1f} | {shares_of_copy[-1]:.2f} |")
        rows += [Row.of("sub_graphs", name, side, "time_us", us, device_name(device)) for side, us in times.items()]
        rows.append(Row.of("sub_graphs", name, "least", "bytes", [least], device_name(device)))
    if ratios:
        slower = sum(ratio < 1 for ratio in ratios)
        print(f"over compiled: {geomean(ratios):.2f}, {slower} slower")
        print(f"share of the copy's bandwidth: {geomean(shares_of_copy):.2f}")
    print(f"{len(failed)} failures of {len(names)}", *(f"{name}: {each}" for name, each in failed.items()), sep="\n")
    if options.csv:
        rows.append(Row.of("sub_graphs", "copy", "torch", "bytes_a_second", [bandwidth], device_name(device)))
        write_csv(options.csv, rows)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
