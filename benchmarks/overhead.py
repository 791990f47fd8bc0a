"""Overhead of a call besides the arithmetic: tiny tensors, torch_reformer against aten, with and without gradients.

Also the time of a decision that the thread remembers. On a GPU the CPU's time of a call is measured, without waiting
for the GPU.

    python benchmarks/overhead.py --csv benchmarks/results/cpu/overhead.csv
    python benchmarks/overhead.py --device cuda --csv benchmarks/results/h200/overhead.csv
"""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from results import Row, write_csv

import torch_reformer
from torch_reformer import ConvProblem
from torch_reformer.runtime import native
from torch_reformer.tuning.workload import device_name, usable_device

CALLS, ROUNDS = 500, 15


def per_call(calls: dict, device: torch.device) -> dict[str, list[float]]:
    """Microseconds per call, over loops of CALLS, interleaved; the call "enabled" runs under
    torch_reformer.enable()."""
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            with torch_reformer.enable() if name == "enabled" else contextlib.nullcontext():
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
            if device.type != "cpu":
                torch.cuda.synchronize(device)
    return times


def cases(device: torch.device):
    """Generate (name, aten's call, torch_reformer's call)."""
    # On a GPU use a data type and layout for which it has kernels, and enough channels that aten is not always chosen.
    channels, kind = (2, {}) if device.type == "cpu" else (64, {"device": device, "dtype": torch.bfloat16})
    x, w = torch.randn(1, channels, 4, 4, **kind), torch.randn(channels, channels, 3, 3, **kind)
    b = torch.randn(channels, **kind)
    theirs = torch.nn.Conv2d(channels, channels, 3, padding=1, **kind)
    ours = torch_reformer.nn.Conv2d(channels, channels, 3, padding=1, **kind)
    if device.type != "cpu":
        x, w = (tensor.to(memory_format=torch.channels_last) for tensor in (x, w))
        theirs, ours = (module.to(memory_format=torch.channels_last) for module in (theirs, ours))
    geometry = (1, 1), (1, 1), (1, 1), 1
    xg, wg, bg = (tensor.clone().requires_grad_() for tensor in (x, w, b))

    def train(conv):
        return lambda: torch.autograd.grad(conv(xg, wg, bg, 1, 1).sum(), (xg, wg, bg))

    if device.type != "cpu":
        w1 = torch.randn(channels, channels, 1, 1, **kind).to(memory_format=torch.channels_last)
        each = torch.randn(channels, 1, 3, 3, **kind)
        yield "forward, 1x1", lambda: F.conv2d(x, w1), lambda: torch_reformer.conv2d(x, w1)
        yield (
            "forward, depthwise",
            lambda: F.conv2d(x, each, None, 1, 1, 1, channels),
            lambda: torch_reformer.conv2d(x, each, None, 1, 1, 1, channels),
        )

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
    yield from fused_cases(x, channels, kind)


def fused_cases(x: torch.Tensor, channels: int, kind: dict):
    """Convolution, batch norm and ReLU: three modules against one."""
    conv = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False, **kind)
    three = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(channels, **kind), torch.nn.ReLU())
    one = torch_reformer.nn.Conv2dBatchNormAct(channels, channels, 3, padding=1, **kind)
    three, one = (model.to(memory_format=torch.channels_last) if x.is_cuda else model for model in (three, one))

    def train(model, x):
        parameters = tuple(model.parameters())
        return lambda: torch.autograd.grad(model(x).sum(), parameters)

    # A single image on one thread does not go to oneDNN, whose calls take longer.
    for images in (1, 2):
        batch = x.repeat(images, 1, 1, 1)
        yield f"fused, {images} images, with grad", lambda: three(batch), lambda: one(batch)  # noqa: B023
        yield f"fused, {images} images, and backward", train(three, batch), train(one, batch)


def decision() -> dict[str, list[float]]:
    """Microseconds of a remembered decision, called through ctypes, and of a ctypes call that does nothing."""
    problem = ConvProblem(n=1, c=2, h=4, w=4, k=2, r=3, s=3).native()
    calls = {"decision": lambda: native.decide(problem), "empty call": lambda: native.problem_kind(problem)}
    return per_call(calls, torch.device("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device = usable_device(options.device)
    where = device_name(device)
    rows = []
    print(
        f"{'microseconds a call (p50)':36}{'aten':>8}{'torch_reformer':>16}{'difference':>12}{'ratio':>8}{'enabled':>9}"
    )
    for name, theirs, ours in cases(device):
        times = per_call({"torch": theirs, "torch_reformer": ours, "enabled": theirs}, device)
        found = [Row.of("overhead", name, provider, "time_us", values, where) for provider, values in times.items()]
        aten, reformer, enabled = (row.p50 for row in found)
        rows += found
        differs = f"{reformer - aten:+12.2f}{reformer / aten:8.2f}"
        print(f"{name:40}{aten:8.2f}{reformer:16.2f}{differs}{enabled:9.2f}")
    for name, values in decision().items():
        rows.append(Row.of("overhead", name, "torch_reformer", "time_us", values))
    print(f"a remembered decision: {rows[-2].p50 - rows[-1].p50:.2f} us (less an empty ctypes call)")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
