"""Rounding errors of every candidate of every problem and of PyTorch, both relative to float64.

The contract is an error of at most twice that of PyTorch's own operator. Since a single result may be exact by chance,
the root mean square error over all elements is compared, over several draws of the operands. Its unit is eps times the
root of the sum of squares of an element's terms (a result may also be small by chance, by cancellation).

    python benchmarks/accuracy.py --problems timm.jsonl --sample 40 --csv OUT.csv
    python benchmarks/accuracy.py        # problems with long sums, many of them with few elements
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from pathlib import Path

import torch
from results import Row, geomean, write_csv
from tqdm import tqdm

from torch_reformer import ConvProblem, config
from torch_reformer.problem import TORCH_DTYPES
from torch_reformer.selector.candidates import candidates
from torch_reformer.selector.problems import read_problems
from torch_reformer.tuning.workload import Workload

PYTORCH = "torch"

# c, h, w, k, r, s, pad, stride, groups, n
LONG_SUMS = [
    *((1, size, size, 1, 1, 1, 0, 1, 1, n) for size, n in [(21, 1), (12, 3), (32, 1), (32, 16), (112, 8)]),
    *((c, size, size, k, 1, 1, 0, 1, 1, 4) for c, k, size in [(2, 3, 14), (16, 16, 28), (64, 32, 56), (3, 1, 14)]),
    *((c, 7, 7, k, 1, 1, 0, 1, 1, 2) for c, k in [(600, 1), (1000, 8), (2048, 64), (8, 600)]),
    *((c, size, size, k, 3, 3, 1, 1, 1, 4) for c, k, size in [(1, 1, 14), (8, 4, 28), (64, 64, 28), (112, 32, 14)]),
    *((c, 14, 14, c, 3, 3, 1, 1, g, 4) for c, g in [(256, 1), (128, 32), (64, 64), (120, 8)]),
    *((c, 56, 56, c, r, r, r // 2, 1, c, 4) for c, r in [(32, 3), (16, 5), (8, 11)]),
    (1, 28, 28, 512, 3, 3, 1, 1, 1, 4),
    (2, 28, 28, 64, 7, 7, 3, 1, 2, 4),
    (3, 112, 112, 32, 7, 7, 3, 2, 1, 4),
    (3, 64, 64, 16, 16, 16, 0, 16, 1, 8),
]


def long_sums(dtype: str) -> list[ConvProblem]:
    return [
        ConvProblem(n, c, h, w, k, r, s, pad, pad, stride, stride, groups=groups, dtype=dtype)
        for c, h, w, k, r, s, pad, stride, groups, n in LONG_SUMS
    ]


def errors(problem: ConvProblem, draws: int) -> dict[str, list[float]]:
    """RMS errors of PyTorch and every candidate, one per draw, in units of eps times the rms of the terms' norm."""
    names = [candidate.name for candidate in candidates(problem) if candidate.reason is None]
    found = defaultdict(list)
    for seed in range(draws):
        work = Workload(problem, seed=seed)
        exact = work.double().torch()
        unit = torch.finfo(TORCH_DTYPES[problem.dtype]).eps * squares(work).torch().mean().sqrt().item()
        for name in (PYTORCH, *names):
            with config(force=None if name == PYTORCH else name):
                got = work.torch() if name == PYTORCH else work.reformer()
            found[name].append((got.double() - exact).square().mean().sqrt().item() / unit)
    return found


def squares(work: Workload) -> Workload:
    """Workload whose operands are the squares of these, in fp64."""
    work = work.double()
    work.input, work.weight, work.output_grad = (t.square() for t in (work.input, work.weight, work.output_grad))
    return work


def rms(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def table(ratios: dict[tuple[str, str], list[tuple[float, ConvProblem]]]) -> str:
    lines = ["| solver, direction, layout | n | geomean | largest | of |", "|---|---|---|---|---|"]
    for name, found in sorted(ratios.items()):
        largest, problem = max(found, key=lambda pair: pair[0])
        mean = geomean(max(ratio, 1e-3) for ratio, _ in found)
        lines.append(f"| {name} | {len(found)} | {mean:.2f} | {largest:.2f} | {problem} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=Path, help=".jsonl, find-db keys or MIOpenDriver lines; without, long sums")
    parser.add_argument("--batch", type=int, default=4, help="of the problems read")
    parser.add_argument("--sample", type=int, help="number of problems to take at random (all directions of each)")
    parser.add_argument("--dtype", default="FP32", help="FP32, FP64, FP16 or BF16")
    parser.add_argument("--directions", default="F,B,W")
    parser.add_argument("--layouts", default="NCHW,NHWC")
    parser.add_argument("--draws", type=int, default=5, help="of random operands for each problem")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--csv", type=Path, help="write every error here")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    problems = long_sums(options.dtype)
    if options.problems:
        problems = read_problems(options.problems, batch=options.batch, dtype=options.dtype, directions=["F"])
    if options.sample:
        problems = random.Random(0).sample(problems, min(options.sample, len(problems)))

    rows, ratios = [], defaultdict(list)
    with torch.inference_mode():
        for geometry in tqdm(problems, unit="problem"):
            for direction in options.directions.split(","):
                for layout in options.layouts.split(","):
                    problem = geometry.replace(direction=direction, layout=layout)
                    found = errors(problem, options.draws)
                    rows += [Row.of("accuracy", str(problem), n, "rms_error_eps", v) for n, v in found.items()]
                    theirs = rms(found.pop(PYTORCH))
                    for name, values in found.items():
                        if rms(values) > 0:
                            ratio = rms(values) / theirs if theirs > 0 else math.inf
                            ratios[f"{name}, {direction}, {layout}"].append((ratio, problem))
    print(table(ratios))
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
