"""Plots the CSV of benchmarks/conv2d.py: the speed-up over PyTorch of every problem, by kind and direction.

python benchmarks/plot_conv2d.py benchmarks/results/cpu/conv2d.csv docs/conv2d-cpu.png
python benchmarks/plot_conv2d.py benchmarks/results/h200/conv2d-bf16-nhwc-advantage.csv.xz docs/conv2d-h200.png
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from results import geomean, read_csv

from torch_reformer import ConvProblem

DIRECTIONS = {"F": "forward", "B": "gradient of the input", "W": "gradient of the weight"}
KINDS = {"stem": "first layer", "other": "other filter"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()

    times: dict[str, dict[str, float]] = defaultdict(dict)
    rows = read_csv(options.csv)
    for row in rows:
        times[row.case][row.provider] = row.p50
    speedups = defaultdict(lambda: defaultdict(list))
    for key, of in times.items():
        problem = ConvProblem.parse(key)
        speedups[problem.direction][KINDS.get(problem.kind, problem.kind)].append(of["torch"] / of["torch_reformer"])

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    for axis, direction in zip(axes, DIRECTIONS, strict=True):
        kinds = speedups[direction]
        for position, kind in enumerate(sorted(kinds, key=lambda kind: -len(kinds[kind]))):
            values = sorted(kinds[kind])
            spread = [position + 0.6 * (i + 0.5) / len(values) - 0.3 for i in range(len(values))]
            axis.scatter(spread, values, s=8)
            axis.hlines(geomean(values), position - 0.35, position + 0.35, colors="black")
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.set_xticks(range(len(kinds)), sorted(kinds, key=lambda kind: -len(kinds[kind])), rotation=30)
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter("{x:g}x")
        axis.set_title(DIRECTIONS[direction])
    axes[0].set_ylabel("chosen kernel over PyTorch\n(bar: geometric mean)")
    figure.suptitle(f"{problem.dtype} in {problem.layout}, batch {problem.n}, {rows[0].device}, torch {rows[0].torch}")
    figure.tight_layout()
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
