"""Benchmarks convolutions against PyTorch's, problem by problem.

For every problem and direction it times torch.conv2d (or the part of its backward that computes one gradient), every
candidate of torch_reformer, and the candidate that torch_reformer chooses. Regret is the chosen candidate's time over
the fastest candidate's, at least 1 for each problem. The fastest candidate is then timed once more, interleaved with
PyTorch, and only this second measurement counts as "best", because the minimum of many noisy times would be too
optimistic. On a GPU with NHWC tensors PyTorch is also timed on NCHW tensors, its default.

    python benchmarks/conv2d.py --problems timm.jsonl --device cpu --batch 4 --sample 160 --csv OUT.csv --json OUT.json
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import torch
from results import Row, geomean, write_csv
from tqdm import tqdm

from torch_reformer import ConvProblem, config
from torch_reformer.selector.candidates import candidates
from torch_reformer.selector.problems import read_problems
from torch_reformer.tuning.timing import interleaved, percentiles
from torch_reformer.tuning.workload import Workload, device_name, usable_device

PYTORCH, NCHW, CHOSEN = "torch", "torch_nchw", "torch_reformer"


def force(provider: str) -> None:
    config(force=None if provider in (PYTORCH, NCHW, CHOSEN) else provider)


def measure(problem: ConvProblem, device: torch.device) -> dict:
    """Times (lists, in microseconds) of every provider, and the fastest candidate's time ratio to PyTorch."""
    work = Workload(problem, device)
    names = [found.name for found in candidates(problem, device_name(work.device)) if found.reason is None]
    calls = {PYTORCH: work.torch, CHOSEN: work.reformer, **{name: work.reformer for name in names}}
    if work.device.type != "cpu" and problem.layout == "NHWC":
        calls[NCHW] = Workload(problem.replace(layout="NCHW"), device).torch
    seconds = 0.03 if work.device.type == "cpu" else 0.003
    times = interleaved(calls, force, seconds=seconds * len(calls), device=work.device)
    median = {name: percentiles(values)[1] for name, values in times.items()}
    fastest = min(names, key=median.get)
    finalists = {PYTORCH: work.torch, fastest: work.reformer}
    again = interleaved(finalists, force, seconds=3 * seconds, device=work.device)
    torch_us, best_us = (percentiles(values)[1] for values in again.values())
    return {
        "problem": problem,
        "times": times,
        "best": fastest,
        "best_speedup": torch_us / best_us,
        "chosen_speedup": median[PYTORCH] / median[CHOSEN],
        "chosen_over_nchw": median[NCHW] / median[CHOSEN] if NCHW in median else None,
        "chosen_over_best": min(1.0, median[fastest] / median[CHOSEN]),
    }


def summary(results: list[dict]) -> dict:
    def group(rows: list[dict]) -> dict:
        return {
            "problems": len(rows),
            "best_speedup": geomean(row["best_speedup"] for row in rows),
            "chosen_speedup": geomean(row["chosen_speedup"] for row in rows),
            "chosen_over_nchw": geomean(row["chosen_over_nchw"] for row in rows if row["chosen_over_nchw"]),
            "chosen_over_best": geomean(row["chosen_over_best"] for row in rows),
            "best_below_0.95": sum(row["best_speedup"] < 0.95 for row in rows),
            "chosen_below_0.95": sum(row["chosen_speedup"] < 0.95 for row in rows),
            "wins": dict(Counter(row["best"] for row in rows).most_common()),
        }

    groups = defaultdict(list)
    for row in results:
        problem = row["problem"]
        groups[problem.kind].append(row)
        groups[f"{problem.kind} {problem.direction}"].append(row)
        groups[f"all {problem.direction}"].append(row)
    return {"all": group(results), **{name: group(groups[name]) for name in sorted(groups)}}


def table(groups: dict) -> str:
    columns = {
        "chosen over PyTorch": lambda group: group["chosen_speedup"],
        "chosen over PyTorch in NCHW": lambda group: group["chosen_over_nchw"],
        "regret": lambda group: 1 / group["chosen_over_best"],
        "best candidate over PyTorch": lambda group: group["best_speedup"],
    }
    if math.isnan(groups["all"]["chosen_over_nchw"]):
        del columns["chosen over PyTorch in NCHW"]
    lines = [f"| problems | n | {' | '.join(columns)} | fastest candidates |", "|---" * (len(columns) + 3) + "|"]
    for name, group in groups.items():
        wins = ", ".join(f"{solver} {count}" for solver, count in group["wins"].items())
        ratios = " | ".join(f"{column(group):.2f}" for column in columns.values())
        lines.append(f"| {name} | {group['problems']} | {ratios} | {wins} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=Path, required=True, help=".jsonl, find-db keys or MIOpenDriver lines")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dtype", default="FP32", help="FP32, FP64, FP16 or BF16")
    parser.add_argument("--directions", default="F,B,W")
    parser.add_argument("--layout", default="NCHW", help="of the tensors that both sides are given")
    parser.add_argument("--sample", type=int, help="number of problems to take at random (all directions of each)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    parser.add_argument("--json", type=Path, help="write the summary here")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    device = usable_device(options.device)
    directions = options.directions.split(",")
    problems = read_problems(
        options.problems, batch=options.batch, dtype=options.dtype, directions=directions, layouts=[options.layout]
    )
    geometries = list(dict.fromkeys(problem.replace(direction="F") for problem in problems))
    if options.sample:
        geometries = random.Random(options.seed).sample(geometries, min(options.sample, len(geometries)))

    results, rows = [], []
    with torch.inference_mode():
        for geometry in tqdm(geometries, unit="problem"):
            for direction in directions:
                results.append(measure(geometry.replace(direction=direction), device))
    for result in results:
        key = str(result["problem"])
        rows += [
            Row.of("conv2d", key, name, "time_us", values, device_name(device))
            for name, values in result["times"].items()
        ]
    groups = summary(results)
    print(table(groups))
    if options.csv:
        write_csv(options.csv, rows)
    if options.json:
        options.json.write_text(json.dumps(groups, indent=1) + "\n")


if __name__ == "__main__":
    main()
