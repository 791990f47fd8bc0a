"""Fits the compiler's costs of attention (torch_reformer/compiler/ir/attention_costs.json) to times of
attention_kernels.py, and prints how far off they are, and what the choice by them costs over the best kernel.

The terms are those of compiler/ir/attention_cost.py; their factors are fitted to relative errors (by scipy's nnls,
reweighted so that the median is fitted).

    python benchmarks/fit_attention_costs.py --csv benchmarks/results/h200/attention_kernels.csv
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from attention_kernels import KERNELS, MASKS, PRODUCTS, case_of
from results import geomean, read_csv
from scipy.optimize import nnls

from torch_reformer.compiler.ir import attention_cost
from torch_reformer.compiler.ir.attention_cost import Attention, kernels, kind_of, terms
from torch_reformer.compiler.ir.device_model import GPUS

ENOUGH = 8  # times required for a kind
_ROUNDS = 20
# The start of a call by these kernels is what its launches need, forward and backward: fits with a free start choose
# flash attention for small steps, but there cuDNN's is faster (GPT-2, 8x128, in results/h200/population-graphs.csv: 17
# us a layer, flash 22).
_LAUNCHES, _LAUNCH_US = {"cudnn": (1, 3), "flash": (1, 3)}, 3.0


class Measured(NamedTuple):
    case: Attention
    kernel: str
    is_backward: bool
    gpu: str
    us: float


def read(path: Path) -> list[Measured]:
    found = []
    for row in read_csv(path):
        case = case_of(row.case)
        attention = Attention(
            *(case.batch, case.heads, case.groups, case.queries, case.keys, case.head_size, case.mask),
            *(case.dropout > 0, case.mask != "mask"),
        )
        name = row.device.rpartition(":")[2]
        gpu = name if name in GPUS else row.device.partition(":")[0]
        found.append(Measured(attention, row.provider, row.metric == "backward_us", gpu, max(row.p50, 1.0)))
    return found


def fit(lines: list[Measured]) -> list[float]:
    kernel, is_backward = lines[0].kernel, lines[0].is_backward
    start = _LAUNCH_US * _LAUNCHES[kernel][is_backward] if kernel in _LAUNCHES else None
    us = np.array([line.us for line in lines])
    rows = np.array([terms(line.case, line.kernel, line.is_backward, GPUS[line.gpu]) for line in lines])
    rows, rest = (rows, np.ones(len(lines))) if start is None else (rows[:, 1:], 1 - start / us)
    relative, weights = rows / us[:, None], np.ones(len(lines))
    for _ in range(_ROUNDS):
        found = nnls(relative * weights[:, None], rest * weights)[0]
        weights = np.maximum(np.abs(relative @ found - rest), 0.01) ** -0.5
    factors = [float(f"{each:.4g}") for each in found]
    return factors if start is None else [start, *factors]


def errors(lines: list[Measured], factors: list[float]) -> np.ndarray:
    rows = np.array([terms(line.case, line.kernel, line.is_backward, GPUS[line.gpu]) for line in lines])
    return np.abs(rows @ factors / np.array([line.us for line in lines]) - 1)


def print_choices(lines: list[Measured]) -> None:
    """Compare the kernel that the table chooses, of PyTorch's, with the fastest one."""
    measured: dict[tuple[Attention, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[tuple[Attention, str, str], int] = defaultdict(int)
    for line in lines:
        measured[line.case, line.gpu][line.kernel] += line.us
        counts[line.case, line.gpu, line.kernel] += 1
    by_mask, first = defaultdict(list), defaultdict(list)
    for (case, gpu), us in measured.items():
        known = {kernel: each for kernel, each in us.items() if kernel in KERNELS and counts[case, gpu, kernel] == 2}
        if len(known) > 1:
            chosen = next(kernel for kernel in kernels(case, gpu, True) if kernel in known)
            by_mask[case.mask].append(known[chosen] / min(known.values()))
            first[case.mask].append(known.get("cudnn", min(known.values())) / min(known.values()))
    print("| mask | cases | chosen over fastest: geomean, worst | cuDNN over fastest |\n|---|---|---|---|")
    for mask in MASKS:
        if by_mask[mask]:
            mean, of_cudnn = geomean(by_mask[mask]), geomean(first[mask])
            print(f"| {mask} | {len(by_mask[mask])} | {mean:.3f}, {max(by_mask[mask]):.2f} | {of_cudnn:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    options = parser.parse_args()
    assert attention_cost.WRITTEN == PRODUCTS
    lines, kinds = read(options.csv), defaultdict(list)
    for line in lines:
        kinds[kind_of(line.kernel, line.is_backward, line.case.mask)].append(line)
    table = {kind: fit(found) for kind, found in sorted(kinds.items()) if len(found) >= ENOUGH}
    print(
        "| kind | times | start, of bytes, of flops, if heads are large, of scores, with dropout | error | 80% below |"
    )
    print("|---|---|---|---|---|")
    for kind, factors in table.items():
        apart = errors(kinds[kind], factors)
        cells = ", ".join(f"{each:.3g}" for each in factors)
        print(f"| {kind} | {len(apart)} | {cells} | {np.median(apart):.0%} | {np.quantile(apart, 0.8):.0%} |")
    text = ",\n".join(f"  {json.dumps(kind)}: {json.dumps(factors)}" for kind, factors in table.items())
    attention_cost.TABLE.write_text(f"{{\n{text}\n}}\n")
    attention_cost.table.cache_clear()
    print_choices(lines)


if __name__ == "__main__":
    main()
