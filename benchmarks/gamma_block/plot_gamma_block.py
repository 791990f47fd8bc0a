"""Plots gamma_block.py's CSVs: test accuracy of every seed over latency at batch 1 on one thread.

python benchmarks/gamma_block/plot_gamma_block.py accuracy.csv latency.csv docs/gamma-block.png
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
from results import geomean, read_csv  # noqa: E402

ACCURACIES = {"test_accuracy_percent": "", "clean_test_accuracy_percent": ", clean"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()

    accuracies = defaultdict(lambda: defaultdict(list))
    latencies = defaultdict(lambda: defaultdict(list))
    for row in (row for file in options.csv for row in read_csv(file)):
        name = row.case.split()[0]
        if row.metric in ACCURACIES:
            accuracies[name + ACCURACIES[row.metric]][row.provider].append(row.p50)
        elif row.metric == "time_us" and row.case.endswith(" threads=1"):
            latencies[name][row.provider].append(row.p50)

    for name, of in accuracies.items():
        if "gamma_cpp" in latencies[name.split(",")[0]]:
            of["gamma_cpp"] = of["gamma"]  # the same model

    figure, axes = plt.subplots(1, len(accuracies), figsize=(4.3 * len(accuracies), 3.6), squeeze=False)
    for axis, (name, of) in zip(axes[0], sorted(accuracies.items()), strict=True):
        for color, (model, values) in enumerate(sorted(of.items())):
            latency = geomean(latencies[name.split(",")[0]][model])
            axis.scatter([latency] * len(values), values, s=14, alpha=0.6, color=f"C{color}")
            mean = sum(values) / len(values)
            axis.scatter([latency], [mean], s=260, marker="_", color=f"C{color}", label=f"{model}: {mean:.1f}%")
        axis.set_xlim(0, 1.15 * max(geomean(times) for times in latencies[name.split(",")[0]].values()))
        axis.margins(y=0.1)
        low, high = axis.get_ylim()
        axis.set_ylim(low - 0.6 * (high - low), high)  # room for the legend
        axis.set_title(name)
        axis.set_xlabel("latency at batch 1, us (geometric mean)")
        axis.legend(loc="lower right")
    axes[0][0].set_ylabel("test accuracy, %\n(dot: a seed, bar: mean)")
    figure.tight_layout()
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
