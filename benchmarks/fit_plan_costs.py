"""Measures the kernels and calls of models' training steps on this GPU, each within its step, and fits the compiler's
cost model to the times (torch_reformer/compiler/ir/costs.json).

The model is time = start + bytes / bandwidth * a + flops / arithmetic * b, with the GPU's bandwidth and arithmetic from
its data sheet (compiler/ir/device_model.py). start, a and b are fitted for each kind of kernel, to relative errors (by
scipy's nnls, reweighted so that the median is fitted). No start is below the shortest time measured. The reported
errors are of models left out of the fit.

    python benchmarks/fit_plan_costs.py --measure --csv benchmarks/results/h100/plan_costs.csv.xz
    python benchmarks/fit_plan_costs.py --csv benchmarks/results/h100/plan_costs.csv.xz
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from graph_models import OF_PAPERS
from models import Step, task
from scipy.optimize import nnls

from torch_reformer.compiler.cli import measured
from torch_reformer.compiler.ir import device_model
from torch_reformer.runtime.gpu import architecture

ENOUGH = 16  # lines required for a kind; rarer kinds use the fit to all lines
_ROUNDS = 20


class Measured(NamedTuple):
    """Line of a report (compiler/analysis/report.py) with its measured time."""

    model: str
    gpu: str
    kind: str
    bytes: int
    flops: int
    us: float


def lines_of(name: str) -> list[Measured]:
    what = task(name, torch.device("cuda"))
    gpu = device_model.known_gpu(architecture(0), torch.cuda.get_device_name())
    return [
        Measured(name, gpu, line.cost, line.read + line.written, line.flops, round(line.measured_us, 2))
        for report in measured(Step(what, "cuda"), what.batch())
        for line in report.lines
    ]


def read(path: Path) -> list[Measured]:
    rows = csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode()))
    return [
        Measured(row["model"], row["gpu"], row["kind"], int(row["bytes"]), int(row["flops"]), float(row["us"]))
        for row in rows
    ]


def write(path: Path, lines: list[Measured]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Measured._fields)
    writer.writerows(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.getvalue().encode()))


def fit(lines: list[Measured], shortest: float) -> device_model.Fitted:
    """Coefficients fitted to these lines. shortest: the lower bound of a start."""
    terms = np.array([device_model.terms(device_model.GPUS[line.gpu], line.bytes, line.flops) for line in lines])
    us = np.array([line.us for line in lines])
    relative, weights = terms / us[:, None], np.ones(len(us))
    for _ in range(_ROUNDS):
        found = nnls(relative * weights[:, None], weights * (1 - shortest * relative[:, 0]))[0]
        found[0] += shortest
        weights = np.maximum(np.abs(relative @ found - 1), 0.01) ** -0.5
    return device_model.Fitted(*(float(f"{each:.4g}") for each in found))


def by_kind(lines: list[Measured]) -> dict[str, list[Measured]]:
    """Lines of each kind that is not rare; under OTHERS all lines, for the rare kinds."""
    kinds = defaultdict(list)
    for line in lines:
        kinds[line.kind].append(line)
    return {kind: found for kind, found in kinds.items() if len(found) >= ENOUGH} | {device_model.OTHERS: lines}


def errors(lines: list[Measured], shortest: float) -> list[float]:
    """Relative errors for each model by a fit to the other models; for a kind with a single model, by the fit to it."""
    models = {line.model for line in lines}
    found = []
    for model in models:
        left_out = [line for line in lines if line.model == model]
        fitted = fit([line for line in lines if line.model != model] if len(models) > 1 else lines, shortest)
        found += [
            abs(fitted.us(device_model.GPUS[each.gpu], each.bytes, each.flops) / each.us - 1) for each in left_out
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--measure", action="store_true", help="measure again, and write the file")
    parser.add_argument("--models", default=",".join(OF_PAPERS))
    options = parser.parse_args()
    if options.measure:
        lines = []
        for name in options.models.split(","):
            lines += lines_of(name)
            write(options.csv, lines)
    kinds = by_kind(read(options.csv))
    shortest = min(line.us for line in kinds[device_model.OTHERS])
    print(f"| {'kind':34} | lines | ms | start us | of bytes | of flops | error: median | 80 % below |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, lines in sorted(kinds.items(), key=lambda each: -sum(line.us for line in each[1])):
        found, apart = fit(lines, shortest), errors(lines, shortest)
        cells = [str(len(lines)), f"{sum(line.us for line in lines) / 1e3:.1f}", *(f"{each:.3g}" for each in found)]
        cells += [f"{100 * np.quantile(apart, share):.0f} %" for share in (0.5, 0.8)]
        print(f"| {kind:34} | {' | '.join(cells)} |")
    table = {kind: list(fit(lines, shortest)) for kind, lines in sorted(kinds.items())}
    text = ",\n".join(f"  {json.dumps(kind)}: {json.dumps(each)}" for kind, each in table.items())
    device_model.TABLE.write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    main()
