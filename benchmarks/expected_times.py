"""Compares the expected times of plans with measured ones: for each kind of kernel and call of models' training steps,
the relative error of the expected microseconds, and the milliseconds of all of them. bf16 autocast, channels_last
images. Kinds with few lines are one kind.

    python benchmarks/expected_times.py --csv benchmarks/results/h200/expected_times.csv
    python benchmarks/expected_times.py --models unet:16x64,timm/swin_tiny_patch4_window7_224:64
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from model_list import drawn
from models import Step, task
from results import Row, percentiles, write_csv

from torch_reformer.compiler.cli import measured
from torch_reformer.tuning.workload import device_name, usable_device

ENOUGH = 8  # lines required for a kind
OTHERS = "others"


class Times(NamedTuple):
    """Microseconds of a line of a report (compiler/analysis/report.py)."""

    kind: str
    expected: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.expected / self.measured - 1)


def times_of(name: str) -> list[Times]:
    what = task(name, torch.device("cuda"))
    lines = [line for report in measured(Step(what, "cuda"), what.batch()) for line in report.lines]
    return [Times(line.cost, line.us, line.measured_us) for line in lines if line.us and line.measured_us]


def by_kind(times: list[Times]) -> dict[str, list[Times]]:
    """The times of each kind, the kind first that takes most in all."""
    counts, kinds = Counter(each.kind for each in times), {}
    for each in times:
        kinds.setdefault(each.kind if counts[each.kind] >= ENOUGH else OTHERS, []).append(each)
    return dict(sorted(kinds.items(), key=lambda item: -sum(each.measured for each in item[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="with their batches (models.py), in place of drawn ones")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="write all errors by kind here, after each model")
    options = parser.parse_args()
    times: list[Times] = []
    for name in options.models.split(",") if options.models else drawn(options.count, options.seed):
        try:
            times += times_of(name)
        except Exception as why:  # the other models are measured all the same
            print(f"{name}: {type(why).__name__}: {why}", flush=True)
            continue
        rows, device = [], device_name(usable_device("cuda"))
        print(f"after {name}: | kind | lines | measured ms | expected ms | error: median | 80% below |")
        for kind, found in by_kind(times).items():
            ms, expected = (
                sum(us) / 1e3 for us in zip(*((each.measured, each.expected) for each in found), strict=True)
            )
            _, median, high = percentiles([each.error for each in found])
            print(f"| {kind} | {len(found)} | {ms:.2f} | {expected:.2f} | {median:.0%} | {high:.0%} |", flush=True)
            for metric, values in (
                ("error", [each.error for each in found]),
                ("measured_ms", [ms]),
                ("expected_ms", [expected]),
            ):
                rows.append(Row.of("expected_times", kind, "torch_reformer", metric, values, device))
        if options.csv:
            write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
