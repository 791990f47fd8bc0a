"""Speed-up of a database's fastest solvers over one solver, by direction and kind (geometric means).

python benchmarks/best_over.py benchmarks/results/h200/timings.fdb.txt.xz --layout NHWC --dtype BF16 --batch 32
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from results import geomean

from torch_reformer.problem import LAYOUTS, TORCH_DTYPES
from torch_reformer.selector.timings import read_timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--over", default="aten", metavar="SOLVER")
    parser.add_argument("--without", action="store_true", help="that solver itself is none of the fastest")
    parser.add_argument("--layout", type=str.upper, choices=LAYOUTS, help="only problems of this layout")
    parser.add_argument("--dtype", type=str.upper, choices=list(TORCH_DTYPES), help="only of this data type")
    parser.add_argument("--batch", type=int, help="only of this batch")
    options = parser.parse_args()
    ratios = defaultdict(list)
    for record in read_timings(options.database):
        others = [ms for name, ms in record.times.items() if not (options.without and name == options.over)]
        if options.over not in record.times or not others:
            continue
        problem = record.problem
        wanted = options.layout or problem.layout, options.dtype or problem.dtype, options.batch or problem.n
        if wanted != (problem.layout, problem.dtype, problem.n):
            continue
        for group in ("all", f"all {problem.direction}", f"{problem.kind} {problem.direction}"):
            ratios[group].append(record.times[options.over] / min(others))
    print(f"| records | n | fastest over {options.over} |\n|---|---|---|")
    for group in sorted(ratios):
        print(f"| {group} | {len(ratios[group])} | {geomean(ratios[group]):.2f} |")


if __name__ == "__main__":
    main()
