"""Peak memory of a training step, by torch_reformer and by PyTorch.

Each side trains in a separate process, which reports its peak resident set minus the resident set after set-up.
torch_reformer promises at most PyTorch's peak plus the workspace limit (torch_reformer.config).

    python benchmarks/memory.py --csv benchmarks/results/cpu/memory.csv
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import torch
from results import Row, write_csv
from torch import nn

import torch_reformer


def network() -> nn.Module:
    """Network with convolutions of every family, from large images to small ones."""

    def block(c: int, k: int, *arguments, **keywords) -> list[nn.Module]:
        return [nn.Conv2d(c, k, *arguments, bias=False, **keywords), nn.BatchNorm2d(k), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32, 7, stride=2, padding=3),
        *block(32, 64, 3, padding=1),
        *block(64, 64, 3, padding=1, groups=64),
        *block(64, 128, 1),
        *block(128, 128, 3, stride=2, padding=1),
        *block(128, 128, 3, padding=1, groups=8),
        *block(128, 256, 1, stride=2),
        *block(256, 256, 5, padding=2, groups=256),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(provider: str, steps: int = 3) -> float:
    """Mebibytes that the training steps added to the peak."""
    torch.manual_seed(0)
    model = network()
    if provider == "torch_reformer":
        torch_reformer.convert(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(16, 3, 224, 224), torch.randint(10, (16,))
    before = resident_mib()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return resident_mib() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--one", choices=("torch", "torch_reformer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return print(train(options.one))
    peaks: dict[str, list[float]] = {"torch": [], "torch_reformer": []}
    for _ in range(options.runs):
        for provider, values in peaks.items():
            command = [sys.executable, __file__, "--one", provider]
            values.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    rows = [Row.of("memory", "training step", provider, "peak_mib", values) for provider, values in peaks.items()]
    limit = torch_reformer.config.settings().workspace_limit / 2**20
    theirs, ours = (row.p50 for row in rows)
    print(
        f"peak memory of a training step, MiB: PyTorch {theirs:.0f}, torch_reformer {ours:.0f} ({ours - theirs:+.0f})"
    )
    print(f"allowed: +{limit:.0f} (the workspace limit)")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
