"""What surrounds matrix products and convolutions, forward and backward: by PyTorch, by torch.compile's own backend and
by this one, in turns. GPUs: how long kernels run, with a cold second-level cache, the wall's time, and the share of the
memory's bandwidth that the least bytes are in the kernels' time. CPUs: the wall's time.

The least bytes are each tensor's once for each pass that needs it: operands and result forward; the result's gradient,
operands again unless the backward needs none, and the operands' gradients.

    python benchmarks/stitch.py --csv benchmarks/results/h200/stitch.csv
    python benchmarks/stitch.py --device cpu --dtype float32 --sides torch,reformer --csv FILE
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from clocks import kernel_milliseconds, milliseconds
from results import Row, geomean, write_csv
from torch import Tensor

import torch_reformer  # noqa: F401  the backend
from torch_reformer.tuning.workload import device_name, usable_device

BANDWIDTH = {"sm_90": 4.3e12}  # of a copy, bytes read and written a second: an H200's
STEPS, PROFILED = 10, 5
COLD = 256 << 20  # bytes, more than the second-level cache
ON_CPU = 16  # rows or images are so many times fewer


class Case(NamedTuple):
    """A function of tensors. again: which of them its backward needs, by number; None: all."""

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    again: tuple[int, ...] | None = None


def _layer_norm(x: Tensor, bias: Tensor, rest: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(F.dropout(x + bias, 0.1) + rest, x.shape[-1:], weight, shift)


def _rms_norm_and_gate(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight) * F.silu(gate)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / x.float().norm(dim=-1, keepdim=True).clamp_min(1e-6).to(x.dtype) * weight


def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor, rest: Tensor | None = None) -> Tensor:
    found = F.batch_norm(x, None, None, weight, bias, training=True)
    return F.relu(found if rest is None else found + rest)


def _embedded(words: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(words, table), table.shape[-1:], weight, bias)


def cases(device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], Case]]:
    fewer = ON_CPU if device.type == "cpu" else 1

    def numbers(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    def images(*sizes: int) -> Tensor:
        return numbers(*sizes).to(memory_format=torch.channels_last)

    def classes(count: int, rows: int) -> Tensor:
        return torch.randint(count, (rows,), device=device)

    def cross_entropy() -> Case:
        labels = classes(50304, 8192 // fewer)
        loss = functools.partial(F.cross_entropy, target=labels, label_smoothing=0.1)
        return Case(loss, (numbers(8192 // fewer, 50304),))

    def binary_cross_entropy() -> Case:
        targets = (torch.rand(64, 670091 // fewer, device=device) < 0.01).to(dtype)
        return Case(functools.partial(F.binary_cross_entropy_with_logits, target=targets), (numbers(*targets.shape),))

    def softmax() -> Case:
        return Case(lambda x: F.dropout(F.softmax(x, -1), 0.1), (numbers(262144 // fewer, 512),))

    def norm() -> Case:
        rows = 8192 // fewer
        vectors = numbers(1024), numbers(1024), numbers(1024)
        return Case(_layer_norm, (numbers(rows, 1024), vectors[0], numbers(rows, 1024), *vectors[1:]))

    def batch_norm(rest: bool) -> Case:
        sizes = 128 // fewer, 256, 56, 56
        vectors = [numbers(256, dtype=torch.float32) for _ in range(2)]
        return Case(_batch_norm, (images(*sizes), *vectors, *([images(*sizes)] if rest else [])))

    def group_norm() -> Case:
        return Case(
            lambda x, weight, bias: F.silu(F.group_norm(x, 32, weight, bias)),
            (images(max(1, 16 // fewer), 320, 64, 64), numbers(320), numbers(320)),
        )

    def embedding() -> Case:
        words = torch.randint(30522, (max(1, 16 // fewer), 512), device=device)
        return Case(functools.partial(_embedded, words), (numbers(30522, 1024), numbers(1024), numbers(1024)))

    return {
        "softmax+dropout": softmax,
        "bias+dropout+residual+layer norm": norm,
        "cross entropy with smoothing": cross_entropy,
        "batch norm+relu": lambda: batch_norm(False),
        "batch norm+add+relu": lambda: batch_norm(True),
        "bias+gelu": lambda: Case(lambda x, b: F.gelu(x + b), (numbers(8192 // fewer, 4096), numbers(4096))),
        "binary cross entropy": binary_cross_entropy,
        "RMS norm+swiglu": lambda: Case(
            _rms_norm_and_gate, (numbers(8192 // fewer, 4096), numbers(8192 // fewer, 4096), numbers(4096))
        ),
        "group norm+silu": group_norm,
        "rotary embedding": lambda: Case(
            _rotated, (numbers(16 // min(fewer, 16), 32, 2048, 64), numbers(2048, 64), numbers(2048, 64)), (1, 2)
        ),
        "l2 norm+scale": lambda: Case(_normed, (numbers(65536 // fewer, 512), numbers(512))),
        "embedding+layer norm": embedding,
    }


class Step:
    """Forward and backward of a case, by one side."""

    def __init__(self, case: Case, run: Callable[..., Tensor]):
        self.run = run
        self.tensors = [each.detach().clone().requires_grad_() for each in case.tensors]
        with torch.no_grad():
            self.grad = torch.ones_like(case.function(*case.tensors))

    def __call__(self) -> None:
        for each in self.tensors:
            each.grad = None
        self.run(*self.tensors).backward(self.grad)


def least_bytes(case: Case) -> int:
    with torch.no_grad():
        result = case.function(*case.tensors).nbytes
    sizes = [each.nbytes for each in case.tensors]
    again = sizes if case.again is None else [sizes[i] for i in case.again]
    return sum(sizes) + result + result + sum(again) + sum(sizes)


def cold_kernel_milliseconds(step: Callable[[], None], device: torch.device) -> float:
    torch.empty(COLD, dtype=torch.int8, device=device).zero_()
    return kernel_milliseconds(step, device)


SIDES = {
    "torch": lambda function: function,
    "compiled": torch.compile,
    "reformer": functools.partial(torch.compile, backend="reformer"),
}


def measure(case: Case, names: list[str], rounds: int, device: torch.device) -> dict[str, dict[str, list[float]]]:
    """For each side: milliseconds by metric."""
    torch._dynamo.reset()
    steps = {side: Step(case, SIDES[side](case.function)) for side in names}
    times: dict[str, dict[str, list[float]]] = {side: {"step_ms": []} for side in names}
    for step in steps.values():
        milliseconds(step, device, 3)
    for _ in range(rounds):
        for side, step in steps.items():
            times[side]["step_ms"].append(milliseconds(step, device, STEPS))
    for _ in range(PROFILED if device.type == "cuda" else 0):
        for side, step in steps.items():
            times[side].setdefault("kernels_ms", []).append(cold_kernel_milliseconds(step, device))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", help="some of them, with commas between them")
    parser.add_argument("--sides", default=",".join(SIDES), help="the first is the peer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device, names = usable_device(options.device), options.sides.split(",")
    makers = cases(device, getattr(torch, options.dtype))
    metric = "kernels_ms" if device.type == "cuda" else "step_ms"
    bandwidth = BANDWIDTH.get(device_name(device))
    rows: list[Row] = []
    ratios: dict[str, list[float]] = {side: [] for side in names}
    print("| " + " | ".join(["case", *(f"{side} {metric}, share" for side in names)]) + " |")
    print("|---" * (len(names) + 1) + "|")
    for name in options.cases.split(",") if options.cases else makers:
        torch.manual_seed(0)
        case = makers[name]()
        least, times, cells = least_bytes(case), measure(case, names, options.rounds, device), [name]
        for side in names:
            for of, values in times[side].items():
                rows.append(Row.of("stitch", name, side, of, values, device_name(device)))
            median = statistics.median(times[side][metric])
            ratios[side].append(statistics.median(times[names[0]][metric]) / median)
            share = least / (median / 1e3) / bandwidth if bandwidth else None
            if share is not None:
                rows.append(Row.of("stitch", name, side, "share_of_bandwidth", [share], device_name(device)))
            cells.append(f"{median:.3f}" + ("" if share is None else f", {share:.2f}"))
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"| {' | '.join(['geometric mean over the first', *(f'{geomean(ratios[side]):.2f}' for side in names)])} |")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
