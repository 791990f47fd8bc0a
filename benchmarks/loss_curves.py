"""Checks that training after ``torch_reformer.fuse`` equals PyTorch's: losses and batch norm's running statistics of
one model.

Both sides use channels_last, the same initial weights and the same sequence of images. Training amplifies rounding
errors, so the two runs diverge. PyTorch in NCHW, which is just as correct, shows how much divergence to expect.

An image is the pattern of its class plus noise. Models are torchvision's, or ``small``, which needs no other package.

    OMP_NUM_THREADS=2 python benchmarks/loss_curves.py --out benchmarks/results/cpu/loss_curves-resnet18.csv
    python benchmarks/loss_curves.py --device cuda --model resnet50 --dtype bf16 --batch 64 --size 128 \\
        --out benchmarks/results/h200/loss_curves-resnet50.csv
"""

from __future__ import annotations

import argparse
import copy
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from models import image_model
from results import Row, write_csv
from torch import Tensor, nn

import torch_reformer
from torch_reformer.tuning.workload import device_name, usable_device

CLASSES, DIFFERENT = 20, 50  # classes of images; distinct batches, which are repeated
NOISE = 4.0  # standard deviation of the noise; that of the patterns is 1
WINDOW = 20  # steps whose mean losses are compared
SIDES = ("torch", "fused", "torch NCHW")
STATISTICS = ("running_mean", "running_var")

Batch = tuple[Tensor, Tensor]


@dataclass
class Run:
    """Results of one side: the loss of each step, and running statistics by name after the first step and after all
    steps."""

    losses: list[float]
    first: dict[str, Tensor]
    last: dict[str, Tensor]


def small_model() -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)
    return nn.Sequential(*block(3, 8, 2), *block(8, 16, 1), *ends)


def model_of(name: str) -> nn.Module:
    """Model with reproducible initial weights."""
    torch.manual_seed(0)
    if name == "small":
        return small_model()
    try:
        return image_model(name, num_classes=CLASSES)
    except ImportError:
        raise SystemExit(f"{name} is torchvision's, which is not installed: pip install torchvision") from None


def batches_of(batch: int, size: int, device: torch.device) -> list[Batch]:
    """Batches with the same numbers on every device; images in channels_last."""
    random = torch.Generator().manual_seed(1)
    patterns = nn.functional.interpolate(torch.randn(CLASSES, 3, 4, 4, generator=random), (size, size), mode="nearest")
    batches = []
    for _ in range(DIFFERENT):
        classes = torch.randint(CLASSES, (batch,), generator=random)
        images = patterns[classes] + NOISE * torch.randn(batch, 3, size, size, generator=random)
        batches.append((images.to(device, memory_format=torch.channels_last), classes.to(device)))
    return batches


def prepared(side: str, model: nn.Module, device: torch.device) -> tuple[nn.Module, torch.memory_format]:
    """Copy of the model for one side, and the memory format of its images."""
    memory_format = torch.contiguous_format if side == "torch NCHW" else torch.channels_last
    model = copy.deepcopy(model).to(device, memory_format=memory_format).train()
    if side == "fused":
        torch_reformer.fuse(model, channels_last=True)
    return model, memory_format


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.named_buffers() if name.endswith(STATISTICS)}


def train(side: str, start: nn.Module, batches: list[Batch], steps: int, rate: float, dtype: torch.dtype) -> Run:
    device = batches[0][0].device
    model, memory_format = prepared(side, start, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses, first = [], {}
    for step in range(steps):
        images, classes = batches[step % len(batches)]
        images = images.contiguous(memory_format=memory_format)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step == 0:
            first = statistics_of(model)
    return Run(torch.stack(losses).tolist(), first, statistics_of(model))


def means(losses: list[float]) -> list[float]:
    return [statistics.mean(losses[i : i + WINDOW]) for i in range(0, len(losses), WINDOW)]


def loss_difference(run: Run, other: Run) -> tuple[float, int]:
    """Largest difference of the mean losses over a window, and the step at which that window begins."""
    pairs = zip(means(run.losses), means(other.losses), strict=True)
    apart = [abs(a - b) for a, b in pairs]
    largest = max(apart)
    return largest, 1 + WINDOW * apart.index(largest)


def statistics_difference(found: dict[str, Tensor], expected: dict[str, Tensor], kind: str) -> float:
    """Largest relative difference over the layers: norm of the difference over the norm."""
    names = [name for name in expected if name.endswith(kind)]
    differences = [(found[name] - expected[name]).norm() / expected[name].norm() for name in names]
    return torch.stack(differences).max().item() if differences else 0.0


def report(case: str, runs: dict[str, Run], device: str) -> list[Row]:
    """Print one line per side; returns the rows of the CSV file."""
    rows = []

    def row(side: str, metric: str, value: float, at: int | None = None) -> float:
        shown = case if at is None else f"{case}, step {at}"
        rows.append(Row("loss_curves", shown, side, metric, *[float(f"{value:.7g}")] * 3, device))
        return value

    print(f"{case}; differences are from torch")
    print("| side | last losses | first losses apart | mean losses apart, at most (from step) | ", end="")
    print("running mean apart, first | running var apart, first | running mean apart, last | running var apart, last |")
    print("|---" * 8 + "|")
    expected = runs[SIDES[0]]
    for side, run in runs.items():
        for step, loss in enumerate(run.losses):
            row(side, "loss", loss, step + 1)
        largest, at = loss_difference(run, expected)
        cells = [side, f"{means(run.losses)[-1]:.4f}"]
        cells.append(f"{row(side, 'loss_difference', abs(run.losses[0] - expected.losses[0]), 1):.1e}")
        cells.append(f"{row(side, f'mean_loss_difference_{WINDOW}', largest, at):.4f} ({at})")
        for step, of, other in ((1, run.first, expected.first), (len(run.losses), run.last, expected.last)):
            for kind in STATISTICS:
                difference = statistics_difference(of, other, kind)
                cells.append(f"{row(side, f'{kind}_difference', difference, step):.1e}")
        print(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18", help="torchvision's name of one, or small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=96, help="of the images")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.001, help="of learning")
    parser.add_argument("--out", type=Path, help="write every loss and difference to this CSV file")
    options = parser.parse_args()
    device, start = usable_device(options.device), model_of(options.model)
    batches = batches_of(options.batch, options.size, device)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    runs = {side: train(side, start, batches, options.steps, options.rate, dtype) for side in SIDES}
    case = f"{options.model}, {options.dtype}, batch {options.batch}, {options.size}x{options.size}"
    rows = report(case, runs, device_name(device))
    if options.out:
        write_csv(options.out, rows)


if __name__ == "__main__":
    main()
