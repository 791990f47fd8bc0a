"""Compares training steps of models that a seed draws from many families (model_list.py): PyTorch, torch.compile and
this backend, the compilers also in CUDA graphs; on request also with a compiled update, and training_step (sides of
train_models.py). bf16 autocast, channels_last images, fused AdamW.

Some models compile side by side, a process each, so times of first steps are those of busy machines. Then each of them
is timed alone, its sides in turns. A table says which kinds of kernels take how long by torch.compile and by this
backend.

    python benchmarks/population.py --count 24 --seed 1 --csv benchmarks/results/h200/population.csv
    python benchmarks/population.py --models timm/swin_tiny_patch4_window7_224:64,unet:16x64
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import re
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import side_by_side
import torch
from clocks import kernels
from model_list import drawn
from results import Row, geomean, write_csv
from side_by_side import Turn
from train_models import Times, add_times, prepare

from torch_reformer.tuning.workload import device_name, usable_device

SIDES = ("torch", "compiled", "reformer", "compiled_graphed", "reformer_graphed")
PAIRS = (  # peers, and what is compared with them
    ("torch", "reformer"),
    ("compiled", "reformer"),
    ("compiled", "reformer_less_memory"),
    ("compiled_graphed", "reformer_graphed"),
    ("compiled_update", "reformer_step"),
    ("compiled_graphed_update", "reformer_step_graphed"),
    ("reformer", "reformer_step"),
    ("reformer_graphed", "reformer_step_graphed"),
)
KINDS = {  # by what is in a kernel's name, the first that fits
    "optimizer": "multi_tensor_apply",
    "attention": "flash|fmha|attention|sdpa",
    "convolutions": "conv|grad|fprop|implicit_gemm|windows|depthwise|winograd|cudnn|xmma_fprop|nchwTonhwc|nhwcTonchw",
    "products": "nvjet|gemm|cutlass|splitK|cublas",
    "fused": "triton_|stitch",
    "copies": "transpose|Memcpy|Memset",
    "PyTorch's": "at::|at_cuda",
    "others": "",
}


class Measured(NamedTuple):
    """Milliseconds by side and metric; peaks in MiB, losses of the first and the last step, and milliseconds of
    kernels by kind, by side."""

    times: Times
    peaks: dict[str, float]
    losses: dict[str, tuple[float, float]]
    kinds: dict[str, dict[str, float]]


def kind_of(kernel: str) -> str:
    return next(kind for kind, names in KINDS.items() if re.search(names, kernel))


def measure(name: str, turn: Turn, options: argparse.Namespace) -> Measured:
    device = usable_device(options.device)
    optimizer = functools.partial(torch.optim.AdamW, lr=1e-4, fused=True)
    sides, times, peaks = prepare(
        name, options.sides.split(","), device, torch.bfloat16, optimizer=optimizer, keep_going=True
    )
    kinds: dict[str, dict[str, float]] = {}
    with turn.taken():
        add_times(times, sides, options.steps, device)
        for side, training in sides.items() if device.type == "cuda" else ():
            kinds[side] = Counter()
            for kernel in kernels(training.step, device):
                kinds[side][kind_of(kernel.name)] += kernel.ms
    losses = {side: (each.losses[0].item(), each.losses[-1].item()) for side, each in sides.items()}
    return Measured(times, peaks, losses, kinds)


def rows_of(name: str, found: Measured, device: torch.device) -> list[Row]:
    def row(side: str, metric: str, values: list[float]) -> Row:
        return Row.of("population", name, side, metric, values, device_name(device))

    rows = [row(side, metric, values) for side, of in found.times.items() for metric, values in of.items()]
    rows += [row(side, "peak_mib", [mib]) for side, mib in found.peaks.items()]
    rows += [row(side, "first_loss", [losses[0]]) for side, losses in found.losses.items()]
    rows += [row(side, "last_loss", [losses[1]]) for side, losses in found.losses.items()]
    return rows + [row(side, f"{kind}_ms", [ms]) for side, of in found.kinds.items() for kind, ms in of.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="with their batches (models.py), in place of drawn ones")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--at-once", type=int, default=5, help="models that are prepared side by side")
    parser.add_argument("--prepare", type=float, default=400, help="seconds after which timing begins in any case")
    parser.add_argument("--csv", type=Path, help="write every measurement here, after each model")
    options = parser.parse_args()
    device = usable_device(options.device)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(
        max(1, (os.cpu_count() or 1) // options.at_once)
    )  # of each process
    names = options.models.split(",") if options.models else drawn(options.count, options.seed)
    rows: list[Row] = []
    over: dict[str, dict[str, float]] = {}
    failed = 0
    start = time.time()
    sides = options.sides.split(",")
    print(f"| model | ms a step: {' | '.join(sides)} | peak MiB | first s | losses |")
    print("|---" * (len(sides) + 4) + "|")
    work = functools.partial(measure, options=options)
    parts = (names[i : i + options.at_once] for i in range(0, len(names), options.at_once))
    for name, found in itertools.chain.from_iterable(
        side_by_side.results(work, part, options.prepare) for part in parts
    ):
        if isinstance(found, Exception):
            failed += 1
            print(f"| {name} | {found} |", flush=True)
            continue
        step = {side: statistics.median(of["step_ms"]) for side, of in found.times.items()}
        cells = [f"{step[side]:.2f}" if side in step else "-" for side in sides]
        cells.append(", ".join(f"{mib:.0f}" for mib in found.peaks.values()))
        cells.append(", ".join(f"{of['first_ms'][0] / 1e3:.0f}" for of in found.times.values()))
        cells.append(", ".join(f"{losses[1]:.4g}" for losses in found.losses.values()))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        for kind in KINDS:
            ms = [found.kinds.get(side, {}).get(kind, 0.0) for side in ("compiled", "reformer")]
            if max(ms) > 0.02 * max(step.values()):
                print(f"|   {kind}, ms of kernels: compiled, reformer | {ms[0]:.2f} | {ms[1]:.2f} |", flush=True)
        for peer, ours in PAIRS:
            if peer in step and ours in step:
                over.setdefault(f"{ours} over {peer}", {})[name] = step[peer] / step[ours]
        rows += rows_of(name, found, device)
        if options.csv:
            write_csv(options.csv, rows)
    for pair, ratios in over.items():
        worst = min(ratios, key=ratios.__getitem__)
        print(f"{pair}: {geomean(ratios.values()):.3f} of {len(ratios)}, least {ratios[worst]:.2f} ({worst})")
    print(f"{failed} failures of {len(names)}; {time.time() - start:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
