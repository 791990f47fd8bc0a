"""Plans of training steps for a GPU that need not be present, under bf16 autocast and with images in channels_last. For
each model it prints if planning succeeds, the seconds of planning, kernels and calls, expected milliseconds, and the
operators left to PyTorch, by the bytes that they move. Nothing is executed. Each model is planned in a separate
process.

    python benchmarks/plans_without_gpu.py --csv plans_without_gpu.csv
    python benchmarks/plans_without_gpu.py --models timm/levit_256:64,bert_base:8x128 --device sm_100
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from model_list import POPULATION
from models import Step, task
from results import Row, write_csv

from torch_reformer.compiler.analysis import fake_gpu
from torch_reformer.compiler.analysis.report import Report
from torch_reformer.compiler.cli import Stopped, recorded
from torch_reformer.compiler.ir.device_model import GPUS

SECONDS = 600  # limit for one model
_OWN = ("conv", "product", "stitch", "casts", "reformer::")
# Products, convolutions and attention; the other kernels and calls are bound by memory.
_OF_ARITHMETIC = (
    *("conv", "product", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution"),
    *("aten::_scaled_dot_product", "aten::_grouped_mm"),
)


class Line(NamedTuple):
    """Line of a report (compiler/analysis/report.py)."""

    kind: str
    bytes: int
    us: float


class Plans(NamedTuple):
    """Plans of a model's training step. failures: messages; empty if everything succeeded. broken: reasons for graph
    breaks within the step. seconds: planning time, without creating the model."""

    failures: list[str]
    broken: list[str]
    graphs: int
    lines: list[Line]
    seconds: float

    def calls(self) -> list[Line]:
        """Lines of PyTorch's operators."""
        return [each for each in self.lines if not each.kind.startswith(_OWN)]

    def share_of_memory_bound_calls(self) -> float:
        """PyTorch's part of the bytes that lines besides products, convolutions and attention move."""
        moved = sum(each.bytes for each in self.lines if not each.kind.startswith(_OF_ARITHMETIC))
        return sum(each.bytes for each in self.calls() if not each.kind.startswith(_OF_ARITHMETIC)) / max(moved, 1)


def plans_of(name: str, device: str = "sm_90") -> Plans:
    """Plans of a model (models.py), made in this process with fake tensors of a GPU."""
    what = task(name, torch.device("cpu"))
    step, batch = Step(what, "cuda"), what.batch()
    begin, failures = time.perf_counter(), []
    try:
        graphs = recorded(step, batch, gpu=device, on_gpu=True)
    except Stopped as why:
        graphs, failures = why.graphs, [str(why)]
    passes = [each for graph in graphs for each in graph.passes]
    failures += [str(each) for each in passes if not isinstance(each, Report)]
    lines = [line for each in passes if isinstance(each, Report) for line in each.lines]
    return Plans(
        failures,
        [each.broken for each in graphs if each.broken],
        len(graphs),
        [Line(each.kind, each.read + each.written, each.us) for each in lines],
        time.perf_counter() - begin,
    )


def plans_in_a_process(name: str, device: str = "sm_90", seconds: float = SECONDS) -> Plans:
    """Plans of a model, made in a separate process."""
    command = [sys.executable, __file__, "--one", name, "--device", device]
    try:
        done = subprocess.run(
            command, env=fake_gpu.environment(), capture_output=True, text=True, timeout=seconds, check=True
        )
    except subprocess.TimeoutExpired:
        return Plans([f"it takes more than {seconds:.0f} s"], [], 0, [], seconds)
    except subprocess.CalledProcessError as error:
        last = next(iter(error.stderr.strip().splitlines()[-1:]), f"it ends with {error.returncode}")
        return Plans([last], [], 0, [], 0.0)
    found = Plans(*json.loads(done.stdout.splitlines()[-1]))
    return found._replace(lines=[Line(*each) for each in found.lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(POPULATION))
    parser.add_argument("--device", default="sm_90", choices=GPUS)
    parser.add_argument("--at-once", type=int, default=1, help="models that are planned side by side")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        fake_gpu.begin()
        print(json.dumps(plans_of(options.one, options.device)))
        return 0
    rows, failed, left, shares = [], [], defaultdict(list), {}
    print("| model | seconds | graphs | kernels and calls | expected ms | PyTorch's share of bytes | memory-bound |")
    print("|---|---|---|---|---|---|---|")
    names = options.models.split(",")
    pool = ThreadPoolExecutor(options.at_once)
    planned = pool.map(functools.partial(plans_in_a_process, device=options.device), names)
    for name, plans in zip(names, planned, strict=True):
        moved, calls = sum(each.bytes for each in plans.lines), plans.calls()
        figures = {
            "seconds": plans.seconds,
            "graphs": plans.graphs,
            "count": len(plans.lines),
            "expected_ms": sum(each.us for each in plans.lines) / 1e3,
            "calls_share": sum(each.bytes for each in calls) / max(moved, 1),
            "memory_bound_calls_share": plans.share_of_memory_bound_calls(),
        }
        shares[name] = figures["memory_bound_calls_share"]
        for each in calls:
            left[each.kind].append((each.bytes, name))
        print(f"| {name} | {' | '.join(f'{each:.4g}' for each in figures.values())} |", flush=True)
        for each in plans.failures:
            failed.append(name)
            print(f"  fails: {each}", flush=True)
        for each in plans.broken:
            print(f"  graph broken off: {each}", flush=True)
        rows += [
            Row.of("plans_without_gpu", name, "plan", each, [value], options.device) for each, value in figures.items()
        ]
        if options.csv:
            write_csv(options.csv, rows)
    print(f"{len(failed)} failures{': ' if failed else ''}{', '.join(failed)}")
    worst = max(shares, key=shares.__getitem__)
    median = statistics.median(shares.values())
    print(f"PyTorch's share of memory-bound bytes: median {median:.2%}, at most {shares[worst]:.1%} ({worst})")
    print("| PyTorch's operator | GB | calls | models |\n|---|---|---|---|")
    for kind, found in sorted(left.items(), key=lambda each: -sum(bytes for bytes, _ in each[1])):
        gigabytes, models = sum(bytes for bytes, _ in found) / 1e9, {name for _, name in found}
        print(f"| {kind} | {gigabytes:.2f} | {len(found)} | {len(models)} |")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
