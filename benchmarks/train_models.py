"""Training steps of vision models by PyTorch, under ``torch_reformer.enable``, after ``torch_reformer.convert`` and
after ``torch_reformer.fuse`` (and by ``torch.compile`` or in CUDA graphs), in turns, and how their losses compare. On a
GPU also: the CPU's time, of a step whose kernels it does not wait for, and the kernels' time alone.

All sides have the same weights, images and random numbers, and channels_last tensors. An image is its class's
pattern and as much noise, so that the loss falls steadily: where noise is learnt by heart, two runs of PyTorch itself
have losses that fall apart. Models are torchvision's.

    python benchmarks/train_models.py --csv benchmarks/results/h200/train_models.csv
    python benchmarks/train_models.py --device cpu --models resnet18:8 --dtype float32 --steps 40
    torchrun --nproc-per-node 2 benchmarks/train_models.py --models resnet50:64  # DistributedDataParallel
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from results import Row, write_csv
from vision import get_model

import torch_reformer
from torch_reformer.tuning.workload import device_name, usable_device

BATCHES = {"resnet50": 128, "convnext_tiny": 128, "mobilenet_v3_large": 256, "efficientnet_b0": 128}
DIFFERENT, CLASSES = 20, 100  # batches; classes
STEPS_A_ROUND = 10


class Training:
    """One side: a model and its optimizer; around: what every step is in the context of."""

    def __init__(
        self,
        model: torch.nn.Module,
        batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
        device: torch.device,
        dtype: torch.dtype,
        around: Callable[[], contextlib.AbstractContextManager],
    ):
        self.model, self.batches, self.device, self.dtype, self.around = model, batches, device, dtype, around
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        with self.around():
            self._step()

    def _step(self) -> None:
        number = len(self.losses)
        torch.manual_seed(number)  # dropout, stochastic depth
        images, classes = self.batches[number % len(self.batches)]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(images), classes)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())


def milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """The time of one step, measured over a few."""
    if device.type == "cpu":
        begin = time.perf_counter()
        for _ in range(STEPS_A_ROUND):
            step()
        return (time.perf_counter() - begin) / STEPS_A_ROUND * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(STEPS_A_ROUND):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / STEPS_A_ROUND


def host_milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """The CPU's time for one step, while the GPU has nothing to do before it."""
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e3


def kernel_milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """The sum of the kernels' times of one step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize(device)
    on_gpu = (event for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(event.self_device_time_total for event in on_gpu) / 1e3


def converted(model: torch.nn.Module) -> torch.nn.Module:
    print(str(torch_reformer.convert(model, channels_last=True)).splitlines()[0])
    return model


def fused(model: torch.nn.Module) -> torch.nn.Module:
    print(str(torch_reformer.fuse(model, channels_last=True)).splitlines()[0])
    return model


class Graphed(torch.nn.Module):
    """The model as two CUDA graphs, forward and backward, by torch.cuda.make_graphed_callables: no time of the CPU."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model, self.captured = model, None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.captured is None:  # in autocast's context
            with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda"), False):
                self.captured = torch.cuda.make_graphed_callables(self.model, (torch.empty_like(images).normal_(),))
        return self.captured(images)


SIDES = {
    "torch": lambda model: model,
    "enabled": lambda model: model,
    "converted": converted,
    "fused": fused,
    "compiled": torch.compile,
    "reformer": functools.partial(torch.compile, backend="reformer"),
    "torch_graphed": Graphed,
    "compiled_graphed": functools.partial(torch.compile, mode="reduce-overhead"),  # CUDA graphs of its own
    "fused_graphed": lambda model: Graphed(fused(model)),
}


def peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def distributed(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model, in DistributedDataParallel where there is more than this process."""
    if not torch.distributed.is_initialized():
        return model
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])


def measure(name: str, batch: int, steps: int, names: list[str], device: torch.device, dtype: torch.dtype):
    """For each side: milliseconds by metric, losses, and the most memory of the first steps."""
    torch.manual_seed(0)
    model = get_model(name, num_classes=CLASSES).to(device, memory_format=torch.channels_last).train()
    patterns = torch.nn.functional.interpolate(torch.randn(CLASSES, 3, 7, 7, device=device), (224, 224))
    batches = []
    for _ in range(DIFFERENT):
        classes = torch.randint(CLASSES, (batch,), device=device)
        images = patterns[classes] + torch.randn(batch, 3, 224, 224, device=device)
        batches.append((images.to(memory_format=torch.channels_last), classes))
    sides = {
        side: Training(
            distributed(SIDES[side](copy.deepcopy(model)), device),
            batches,
            device,
            dtype,
            torch_reformer.enable if side == "enabled" else contextlib.nullcontext,
        )
        for side in names
    }
    peaks = {}
    for side, training in sides.items():
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        milliseconds(training.step, device)  # plans, kernels and memory
        peaks[side] = (peak_bytes(device) - before) / 2**20
    metrics = {"step_ms": milliseconds}
    if device.type == "cuda":
        metrics |= {"host_ms": host_milliseconds, "kernels_ms": kernel_milliseconds}
    times: dict[str, dict[str, list[float]]] = {side: {metric: [] for metric in metrics} for side in sides}
    while len(sides[names[0]].losses) < steps:
        for metric, time_of in metrics.items():
            for side, training in sides.items():
                times[side][metric].append(time_of(training.step, device))
    return times, {side: torch.stack(training.losses).tolist() for side, training in sides.items()}, peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(BATCHES), help="resnet50:64 has a batch of 64, not its own")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--sides", default="torch,converted,fused", help=f"of {', '.join(SIDES)}; the first is the peer"
    )
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 (autocast) or float32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device, names = usable_device(options.device), options.sides.split(",")
    if "LOCAL_RANK" in os.environ:  # by torchrun
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl", device_id=device)
        if device.index:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  as long as the process lives
            options.csv = None
    rows = []
    print("| model, side | ms a step | speed-up | CPU ms | kernels ms | peak MiB | last losses | largest difference |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        model, _, batch = name.partition(":")
        images, dtype = int(batch or BATCHES[model]), getattr(torch, options.dtype)
        times, losses, peaks = measure(model, images, options.steps, names, device, dtype)

        def row(side: str, metric: str, values: list[float], name: str = name) -> None:
            rows.append(Row.of("train_models", name, side, metric, values, device_name(device)))

        means = {
            side: [statistics.mean(values[i : i + STEPS_A_ROUND]) for i in range(0, len(values), STEPS_A_ROUND)]
            for side, values in losses.items()
        }
        first = statistics.median(times[names[0]]["step_ms"])
        for side in names:
            apart = max(abs(a - b) for a, b in zip(means[names[0]], means[side], strict=True))
            for metric, values in times[side].items():
                row(side, metric, values)
            row(side, "last_losses", losses[side][-STEPS_A_ROUND:])
            row(side, "mean_loss_difference", [apart] * 2)
            if device.type == "cuda":
                row(side, "peak_mib", [peaks[side]] * 2)
            ms, *others = (statistics.median(values) for values in times[side].values())
            told = " | ".join(f"{value:.2f}" for value in (*others, peaks[side])) if others else "- | - | -"
            loss = f"{means[side][-1]:.4f} | {apart:.4f}"
            print(f"| {name}, {side} | {ms:.2f} | {first / ms:.3f} | {told} | {loss} |", flush=True)
        if options.csv:
            write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
