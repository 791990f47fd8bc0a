"""Planner's search time and results for small models of all kinds (test/zoo.py), with a GPU's costs: processor seconds,
components of the graphs, costs of groups, and the gap between the cost and its bound. A training step of each model
runs on the CPU.

    python benchmarks/plan_zoo.py --csv benchmarks/results/plan_zoo.csv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from unittest import mock

import torch
from results import Row, write_csv

from torch_reformer.compiler import pipeline
from torch_reformer.compiler.backend import reformer

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
import zoo  # noqa: E402

METRICS = ("graphs", "seconds", "components", "distinct", "refused", "greedy_us", "plan_us", "bound_us", "gap")


def figures(name: str, device: str) -> dict[str, float]:
    """Sums over the graphs of a training step. gap: 1 - bound / cost of the plan."""
    reports, case = [], zoo.made((zoo.QUICK | zoo.HEAVY)[name])
    torch._dynamo.reset()
    with mock.patch.object(pipeline, "gpu_of", lambda graph: device):
        options = {"report": reports.append}
        zoo.results(case, torch.float32, lambda model: torch.compile(model, backend=reformer, options=options))
    planned = [each.planned for each in reports if each.planned]
    found = {metric: sum(getattr(each, metric) for each in planned) for metric in METRICS[1:4]}
    found |= {metric: sum(getattr(each, metric) for each in planned) for metric in METRICS[5:8]}
    found |= {"graphs": len(reports), "refused": sum(len(each.refused) for each in planned)}
    return found | {"gap": 1 - found["bound_us"] / found["plan_us"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*zoo.QUICK, *zoo.HEAVY], choices=zoo.QUICK | zoo.HEAVY)
    parser.add_argument("--device", default="sm_90", help="the GPU's architecture")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'':20}{''.join(f'{metric:>12}' for metric in METRICS)}")
    for name in options.models:
        found = figures(name, options.device)
        print(f"{name:20}{''.join(f'{found[metric]:12.5g}' for metric in METRICS)}", flush=True)
        rows += [Row.of("plan_zoo", name, "groups", each, [found[each]], options.device) for each in METRICS]
        if options.csv:
            write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
