"""Training steps of layers with operators that no plan computes (test/partial_cases.py): the share of operators that
programs compute, and milliseconds of processor time a step on one thread, in turns: eager; PyTorch's operators behind
the front end that all compilers share (``aot_eager``); compiled.

    python benchmarks/partial_plans.py --csv benchmarks/results/cpu/partial_plans.csv
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from results import Row, write_csv
from torch import Tensor

from torch_reformer.compiler.backend import reformer

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
from partial_cases import CASES, Model  # noqa: E402

ALL = {"(a sine)": (lambda _, h: h.sin(), ""), **CASES}  # a plan computes all of the first
SIZES = (16, 32, 256)  # sequences, rows of each, columns


def share_of_programs(reports: list) -> float:
    """Share of the graphs' operators that programs compute."""
    lines = [line for report in reports for line in report.lines if line.kind == "stitch"]
    computed = sum(not name.startswith("[") for line in lines for name in line.operations)
    return computed / sum(len(report.unfused) for report in reports)


def step_ms(run: Callable, model: Model, x: Tensor) -> float:
    model.zero_grad()
    start = time.process_time()
    run(x).backward()
    return (time.process_time() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[*ALL], choices=ALL)
    parser.add_argument("--steps", type=int, default=31)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.capture_dynamic_output_shape_ops = torch._dynamo.config.capture_scalar_outputs = True
    warnings.simplefilter("ignore")
    rows = []
    print(f"{'':24}{'in programs':>12}{'eager ms':>10}{'front end':>10}{'compiled':>10}")
    for name in options.cases:
        torch._dynamo.reset()
        torch.manual_seed(0)
        reports: list = []
        model, x = Model(ALL[name][0], *SIZES[1:], dtype=torch.float32), torch.randn(SIZES)
        runs = {
            "torch": model,
            "aot_eager": torch.compile(model, backend="aot_eager"),
            "torch_reformer": torch.compile(model, backend=reformer, options={"report": reports.append}),
        }
        times: dict[str, list[float]] = {provider: [] for provider in runs}
        for step in range(options.steps + 3):
            for provider, run in runs.items():
                ms = step_ms(run, model, x)
                times[provider] += [ms] if step >= 3 else []
        share = share_of_programs(reports) if reports else 0.0
        medians = (sorted(each)[len(each) // 2] for each in times.values())
        print(f"{name:24}{share:12.0%}{''.join(f'{ms:10.2f}' for ms in medians)}", flush=True)
        rows += [Row.of("partial_plans", name, provider, "step_ms", each) for provider, each in times.items()]
        rows.append(Row.of("partial_plans", name, "torch_reformer", "share_of_programs", [share]))
        if options.csv:
            write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
