"""Wall time of a training step: one plan by torch_reformer.training_step, against two plans and a fused optimizer, and
on request torch.compile with a compiled optimizer step, in turns.

    python benchmarks/whole_step.py
    python benchmarks/whole_step.py --device cuda --mode reduce-overhead --inductor --csv whole_step.csv
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from results import Row, write_csv
from torch import nn

import torch_reformer
from torch_reformer.tuning.workload import device_name, usable_device


def network(blocks: int, width: int) -> nn.Module:
    layers = [layer for _ in range(blocks) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def apart(model: nn.Module, compiles_optimizer: bool, **options):
    """A step by a compiled loss, autograd and a fused or compiled optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=None if compiles_optimizer else True)
    forward = torch.compile(lambda x, y: loss(model, x, y), **options)
    update = torch.compile(optimizer.step) if compiles_optimizer else optimizer.step

    def step(x, y):
        value = forward(x, y)
        value.backward()
        update()
        optimizer.zero_grad()
        return value.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode")
    parser.add_argument("--inductor", action="store_true", help="also torch.compile with a compiled optimizer step")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    models = [network(options.blocks, options.width).to(options.device) for _ in range(3)]
    x = torch.randn(options.rows, options.width, device=options.device)
    y = torch.randint(10, (options.rows,), device=options.device)
    mode = {"mode": options.mode} if options.mode else {}
    optimizer = torch.optim.AdamW(models[0].parameters(), fused=True)
    steps = {
        "one plan": torch_reformer.training_step(models[0], loss, optimizer, **mode),
        "two plans": apart(models[1], False, backend="reformer", **mode),
    }
    if options.inductor:
        steps["torch.compile"] = apart(models[2], True, **mode)
    times = {name: [] for name in steps}
    for number in range(5 + options.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(20):
                step(x, y)
            if options.device != "cpu":
                torch.cuda.synchronize()
            if number >= 5:
                times[name].append((time.perf_counter() - start) / 20 * 1e6)
    case = f"{options.blocks} blocks of {options.width}, {options.rows} rows, {options.mode or 'default'}"
    where = device_name(usable_device(options.device))
    if options.csv:
        write_csv(
            options.csv, [Row.of("whole_step", case, name, "step_us", values, where) for name, values in times.items()]
        )
    for name, values in times.items():
        print(f"{name:16}{statistics.median(values):10.0f} us a step (best {min(values):.0f})")


if __name__ == "__main__":
    main()
