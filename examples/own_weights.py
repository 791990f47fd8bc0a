"""Weights of the selector for your machine: time the candidates of convolutions (``collect``), train on the timings
(``train``), and use the file from the next import on (``TORCH_REFORMER_WEIGHTS``).

The problems of your model come from ``record_problems``; training wants at least 100, so others like them are added. On
a GPU give ``collect`` ``--device cuda``, and ``train`` the architecture that ``info`` prints. Weights for use want
thousands of problems in all three directions, an otherwise idle machine, and the defaults of ``train``."""

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import torch_reformer


def problems() -> list[str]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 1))
    torch_reformer.convert(model)
    with torch_reformer.record_problems() as recorded, torch.no_grad():
        model(torch.randn(2, 3, 8, 8))
    sizes = itertools.product((4, 6, 8, 12, 16), (4, 8, 12, 16), (5, 7, 10), ((1, 0), (3, 1)))
    others = (f"{c}-{h}-{h}-{r}x{r}-{k}-{h}-{h}-2-{p}x{p}-1x1-1x1-0-NCHW-FP32-F" for c, k, h, (r, p) in sizes)
    return [*(str(problem) for problem, _ in recorded), *others]


def command(*words: object, **settings: str) -> None:
    subprocess.run([sys.executable, "-m", "torch_reformer", *map(str, words)], env=os.environ | settings, check=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        keys, timings, weights = (Path(folder) / name for name in ("problems.txt", "timings.fdb.txt", "mine.pt"))
        keys.write_text("\n".join(problems()))
        command("collect", "--problems", keys, "--out", timings, "--repeats", 1)
        command("train", "--timings", timings, "--arch", "cpu", "--out", weights, "--epochs", 2, "--teachers", 0)
        command("info", TORCH_REFORMER_WEIGHTS=str(weights))


if __name__ == "__main__":
    main()
