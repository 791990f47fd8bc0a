"""What a call costs besides the arithmetic: tiny tensors, torch_reformer against aten, with and without gradients; and
what a decision costs that this thread has made before.

python benchmarks/overhead.py --csv benchmarks/results/cpu/overhead.csv
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from results import Row, write_csv

import torch_reformer
from torch_reformer import ConvProblem, _native

CALLS, ROUNDS = 500, 15


def per_call(calls: dict) -> dict[str, list[float]]:
    """Microseconds a call of each, over loops of CALLS, in turns."""
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return times


def cases():
    """name -> (aten's call, torch_reformer's call)."""
    x, w, b = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3), torch.randn(2)
    theirs = torch.nn.Conv2d(2, 2, 3, padding=1)
    ours = torch_reformer.nn.Conv2d(2, 2, 3, padding=1)
    geometry = (1, 1), (1, 1), (1, 1), 1
    xg, wg, bg = (tensor.clone().requires_grad_() for tensor in (x, w, b))

    def train(conv):
        return lambda: torch.autograd.grad(conv(xg, wg, bg, 1, 1).sum(), (xg, wg, bg))

    yield "forward", lambda: F.conv2d(x, w, b, *geometry), lambda: torch_reformer.conv2d(x, w, b, *geometry)
    yield (
        "forward with grad",
        lambda: F.conv2d(xg, wg, bg, *geometry),
        lambda: torch_reformer.conv2d(xg, wg, bg, *geometry),
    )
    yield "module with grad", lambda: theirs(x), lambda: ours(x)
    op = torch.ops.reformer.conv2d
    yield "operator", lambda: torch.ops.aten.conv2d(x, w, b, *geometry), lambda: op(x, w, b, *geometry)
    yield "operator with grad", lambda: torch.ops.aten.conv2d(xg, wg, bg, *geometry), lambda: op(xg, wg, bg, *geometry)
    yield "forward and backward", train(F.conv2d), train(torch_reformer.conv2d)


def decision() -> dict[str, list[float]]:
    """Microseconds of a remembered decision, called through ctypes, and of a ctypes call that does nothing."""
    problem = ConvProblem(n=1, c=2, h=4, w=4, k=2, r=3, s=3).native()
    return per_call({"decision": lambda: _native.decide(problem), "empty call": lambda: _native.problem_kind(problem)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    rows = []
    print(f"{'microseconds a call (p50)':28}{'aten':>8}{'torch_reformer':>16}{'difference':>12}")
    for name, theirs, ours in cases():
        times = per_call({"torch": theirs, "torch_reformer": ours})
        rows += [Row.of("overhead", name, provider, "time_us", values) for provider, values in times.items()]
        aten, reformer = (row.p50 for row in rows[-2:])
        print(f"{name:28}{aten:8.2f}{reformer:16.2f}{reformer - aten:+12.2f}")
    for name, values in decision().items():
        rows.append(Row.of("overhead", name, "torch_reformer", "time_us", values))
    print(f"a remembered decision: {rows[-2].p50 - rows[-1].p50:.2f} us (less an empty ctypes call)")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
