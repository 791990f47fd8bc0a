"""Training steps of vision models before and after ``torch_reformer.convert``, in turns, and how their losses compare.

Both sides have the same weights, pictures and random numbers, channels_last tensors and bf16 autocast. The pictures are
noise of which a few batches come again and again, so that there is something to learn. Models are torchvision's.

    python benchmarks/train_models.py --csv benchmarks/results/h200/train_models.csv
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torchvision
from results import Row, write_csv

import torch_reformer
from torch_reformer.workload import device_name, usable_device

BATCHES = {"resnet50": 128, "convnext_tiny": 128, "mobilenet_v3_large": 256}
DIFFERENT, CLASSES = 4, 100  # batches; classes
STEPS_A_ROUND = 10


class Training:
    """One side: a model and its optimizer."""

    def __init__(self, model: torch.nn.Module, batches: Sequence[tuple[torch.Tensor, torch.Tensor]], device) -> None:
        self.model, self.batches, self.device = model, batches, device
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        number = len(self.losses)
        torch.manual_seed(number)  # dropout, stochastic depth
        pictures, classes = self.batches[number % len(self.batches)]
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(pictures), classes)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())


def milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """Of one step, over a few."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(STEPS_A_ROUND):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / STEPS_A_ROUND


def measure(name: str, batch: int, steps: int, device: torch.device) -> tuple[dict[str, list[float]], dict[str, list]]:
    """Milliseconds a step and losses of both sides."""
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(num_classes=CLASSES).to(device, memory_format=torch.channels_last).train()
    batches = [
        (
            torch.randn(batch, 3, 224, 224, device=device).to(memory_format=torch.channels_last),
            torch.randint(CLASSES, (batch,), device=device),
        )
        for _ in range(DIFFERENT)
    ]
    converted = copy.deepcopy(model)
    print(name, torch_reformer.nn.convert(converted, channels_last=True))
    sides = {"torch": Training(model, batches, device), "torch_reformer": Training(converted, batches, device)}
    for side in sides.values():
        milliseconds(side.step, device)  # plans, kernels and memory
    times: dict[str, list[float]] = {side: [] for side in sides}
    while len(sides["torch"].losses) < steps:
        for side, training in sides.items():
            times[side].append(milliseconds(training.step, device))
    return times, {side: torch.stack(training.losses).tolist() for side, training in sides.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(BATCHES))
    parser.add_argument("--batch", type=int, help="instead of each model's own")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device = usable_device(options.device)
    rows = []
    print("| model | PyTorch, ms | converted, ms | speed-up | last losses | largest difference of mean losses |")
    print("|---|---|---|---|---|---|")
    for name in options.models.split(","):
        times, losses = measure(name, options.batch or BATCHES[name], options.steps, device)
        for side in times:
            rows.append(Row.of("train_models", name, side, "step_ms", times[side], device_name(device)))
            rows.append(
                Row.of("train_models", name, side, "last_losses", losses[side][-DIFFERENT:], device_name(device))
            )
        theirs, ours = (
            [statistics.mean(values[i : i + 2 * DIFFERENT]) for i in range(0, len(values), 2 * DIFFERENT)]
            for values in losses.values()
        )
        apart = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
        rows.append(
            Row.of("train_models", name, "torch_reformer", "mean_loss_difference", [apart] * 2, device_name(device))
        )
        before, after = (statistics.median(values) for values in times.values())
        step = f"{before:.2f} | {after:.2f} | {before / after:.3f}"
        print(f"| {name} | {step} | {theirs[-1]:.4f}, {ours[-1]:.4f} | {apart:.4f} |")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
