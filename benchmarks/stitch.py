"""Times the operations around matrix products and convolutions, forward and backward, by PyTorch, torch.compile's
default backend and this one.

The sides are interleaved. On GPUs the columns are the kernels' time with a cold second-level cache, the wall time, and
the fraction of the memory bandwidth at which the minimal bytes would be moved in the kernels' time. On CPUs it is the
wall time.

The minimal bytes are those of each case's large tensors: operands and result, their gradients, and what the backward
has to read again. The gradient of a loss can be computed along with the loss, so nothing is counted again for it.
Values that need the statistics of a batch are read after the statistics are known.

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
from clocks import kernel_count, kernel_milliseconds, milliseconds
from results import Row, geomean, write_csv
from torch import Tensor

import torch_reformer  # noqa: F401  the backend
from torch_reformer.tuning.workload import device_name, usable_device

BANDWIDTH = {"sm_90": 4.3e12}  # of a copy on an H200: bytes read and written per second
STEPS, PROFILED = 10, 5
COLD = 256 << 20  # bytes, more than the second-level cache holds
ON_CPU = 16  # factor by which rows or images are fewer on a CPU


class Case(NamedTuple):
    """Function of tensors, and the minimal bytes of its forward and backward (0 if it is not limited by memory).
    autocast: run it under autocast, where PyTorch computes losses in fp32."""

    function: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    least: int = 0
    has_backward: bool = True
    autocast: bool = False


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


def _loss_of_labels(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(F.linear(x, weight, bias), targets)


def cases(device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], Case]]:
    fewer = ON_CPU if device.type == "cpu" else 1

    def numbers(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    def images(*sizes: int) -> Tensor:
        return numbers(*sizes).to(memory_format=torch.channels_last)

    def classes(count: int, rows: int) -> Tensor:
        return torch.randint(count, (rows,), device=device)

    def cross_entropy() -> Case:
        labels, scores = classes(50304, 8192 // fewer), numbers(8192 // fewer, 50304)
        loss = functools.partial(F.cross_entropy, target=labels, label_smoothing=0.1)
        return Case(loss, (scores,), 2 * scores.nbytes, autocast=True)

    def binary_cross_entropy() -> Case:
        targets = (torch.rand(64, 670091 // fewer, device=device) < 0.01).to(dtype)
        loss = functools.partial(F.binary_cross_entropy_with_logits, target=targets)
        return Case(loss, (numbers(*targets.shape),), 3 * targets.nbytes, autocast=True)

    def softmax() -> Case:
        scores = numbers(262144 // fewer, 512)
        return Case(lambda x: F.dropout(F.softmax(x, -1), 0.1), (scores,), 5 * scores.nbytes)

    def layer_norm() -> Case:
        x, rest = numbers(8192 // fewer, 1024), numbers(8192 // fewer, 1024)
        return Case(_layer_norm, (x, numbers(1024), rest, numbers(1024), numbers(1024)), 8 * x.nbytes)

    def batch_norm(rest: bool) -> Case:
        x, *more = (images(128 // fewer, 256, 56, 56) for _ in range(1 + rest))
        vectors = (numbers(256, dtype=torch.float32) for _ in range(2))
        least = 10.2 if rest else 8  # includes one bit for each element that ReLU passes
        return Case(_batch_norm, (x, *vectors, *more), int(least * x.nbytes))

    def gelu() -> Case:
        x = numbers(8192 // fewer, 4096)
        return Case(lambda x, bias: F.gelu(x + bias), (x, numbers(4096)), 5 * x.nbytes)

    def rms_norm() -> Case:
        x, gate = numbers(8192 // fewer, 4096), numbers(8192 // fewer, 4096)
        return Case(_rms_norm_and_gate, (x, gate, numbers(4096)), 8 * x.nbytes)

    def group_norm() -> Case:
        x = images(max(1, 16 // fewer), 320, 64, 64)
        function = lambda x, weight, bias: F.silu(F.group_norm(x, 32, weight, bias))  # noqa: E731
        return Case(function, (x, numbers(320), numbers(320)), 5 * x.nbytes)

    def rotary() -> Case:
        x = numbers(16 // min(fewer, 16), 32, 2048, 64)
        angles = numbers(2048, 64), numbers(2048, 64)
        return Case(functools.partial(_rotated, cosine=angles[0], sine=angles[1]), (x,), 4 * x.nbytes)

    def l2_norm() -> Case:
        x = numbers(65536 // fewer, 512)
        return Case(_normed, (x, numbers(512)), 5 * x.nbytes)

    def embedding() -> Case:
        words, table = classes(30522, 8192 // fewer).view(-1, 512), numbers(30522, 1024)
        rows = words.numel() * 1024 * table.itemsize
        return Case(functools.partial(_embedded, words), (table, numbers(1024), numbers(1024)), 4 * rows + table.nbytes)

    # Cases 13 to 17 of EVT (Chen et al., EVT: accelerating deep learning training with epilogue visitor tree, ASPLOS
    # 2024): BERT's attention and perceptron, a convolution, XML-CNN's loss and that of a graph network.
    def attention() -> Case:
        q, k, v = (numbers(max(1, 8 // fewer), 16, 512, 64) for _ in range(3))

        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.dropout(torch.softmax(q @ k.transpose(-2, -1) / 8, -1), 0.1) @ v

        return Case(function, (q, k, v), has_backward=False, autocast=True)

    def perceptron() -> Case:
        x, weights = numbers(4096 // fewer, 1024), (numbers(4096, 1024), numbers(4096), numbers(1024, 4096))
        function = lambda x, a, b, c: F.linear(F.gelu(F.linear(x, a, b)), c)  # noqa: E731
        return Case(function, (x, *weights), has_backward=False, autocast=True)

    def convolution() -> Case:
        weight = numbers(64, 64, 3, 3).to(memory_format=torch.channels_last)
        vectors = (numbers(64, dtype=torch.float32) for _ in range(2))
        function = lambda x, w, *rest: _batch_norm(F.conv2d(x, w, padding=1), *rest)  # noqa: E731
        tensors = (images(32 // fewer, 64, 56, 56), weight, *vectors)
        return Case(function, tensors, has_backward=False, autocast=True)

    def linear_and_loss() -> Case:
        targets = (torch.rand(256, 32768, device=device) < 0.01).to(dtype)
        function = functools.partial(_loss_of_labels, targets=targets)
        return Case(function, (numbers(256, 1024), numbers(32768, 1024), numbers(32768)), autocast=True)

    def classes_of_nodes() -> Case:
        labels, scores = classes(352, 736392 // fewer), numbers(736392 // fewer, 352)
        loss = functools.partial(F.cross_entropy, target=labels)
        return Case(loss, (scores,), 2 * scores.nbytes, autocast=True)

    return {
        "softmax+dropout": softmax,
        "bias+dropout+residual+layer norm": layer_norm,
        "cross entropy with smoothing": cross_entropy,
        "batch norm+relu": lambda: batch_norm(False),
        "batch norm+add+relu": lambda: batch_norm(True),
        "bias+gelu": gelu,
        "binary cross entropy": binary_cross_entropy,
        "RMS norm+swiglu": rms_norm,
        "group norm+silu": group_norm,
        "rotary embedding": rotary,
        "l2 norm+scale": l2_norm,
        "embedding+layer norm": embedding,
        "EVT 13: attention forward": attention,
        "EVT 14: perceptron forward": perceptron,
        "EVT 15: convolution+batch norm+relu forward": convolution,
        "EVT 16: linear+binary cross entropy": linear_and_loss,
        "EVT 17: cross entropy of nodes": classes_of_nodes,
    }


class Step:
    """Forward and backward of a case by one side."""

    def __init__(self, case: Case, run: Callable[..., Tensor]):
        self.run, self.has_backward = run, case.has_backward
        self.tensors = [each.detach().clone().requires_grad_() for each in case.tensors]
        device, half = self.tensors[0].device.type, self.tensors[0].dtype != torch.float32
        self.context = functools.partial(torch.autocast, device, torch.bfloat16, case.autocast and half)
        with torch.no_grad(), self.context():
            self.grad = torch.ones_like(case.function(*case.tensors))

    def __call__(self) -> None:
        for each in self.tensors:
            each.grad = None
        with self.context():
            result = self.run(*self.tensors)
        if self.has_backward:
            result.backward(self.grad)


def cold_kernel_milliseconds(step: Callable[[], None], device: torch.device) -> float:
    torch.empty(COLD, dtype=torch.int8, device=device).zero_()
    return kernel_milliseconds(step, device)


SIDES = {
    "torch": lambda function: function,
    "compiled": torch.compile,
    "reformer": functools.partial(torch.compile, backend="reformer"),
}


def measure(case: Case, names: list[str], rounds: int, device: torch.device) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by metric, for each side."""
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
            times[side].setdefault("kernels", []).append(kernel_count(step, device))
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
    told = metric if metric == "step_ms" else f"{metric}, step_ms, share"
    print("| " + " | ".join(["case", *(f"{side} {told}" for side in names)]) + " |")
    print("|---" * (len(names) + 1) + "|")
    for name in options.cases.split(",") if options.cases else makers:
        torch.manual_seed(0)
        case = makers[name]()
        times, cells = measure(case, names, options.rounds, device), [name]
        for side in names:
            for of, values in times[side].items():
                rows.append(Row.of("stitch", name, side, of, values, device_name(device)))
            median = statistics.median(times[side][metric])
            ratios[side].append(statistics.median(times[names[0]][metric]) / median)
            share = case.least / (median / 1e3) / bandwidth if bandwidth and case.least else None
            if share is not None:
                rows.append(Row.of("stitch", name, side, "share_of_bandwidth", [share], device_name(device)))
            numbers = [median, *([statistics.median(times[side]["step_ms"])] if metric != "step_ms" else [])]
            cells.append(", ".join(f"{each:.3f}" for each in numbers) + ("" if share is None else f", {share:.2f}"))
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"| {' | '.join(['geometric mean over the first', *(f'{geomean(ratios[side]):.2f}' for side in names)])} |")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
