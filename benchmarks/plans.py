"""What the compiler makes of a training step of torchvision's models under bf16 autocast, in channels_last: kernels and
calls, gigabytes and expected milliseconds on a GPU, against one kernel an operation. Nothing runs: no GPU is needed.

    python benchmarks/plans.py --csv benchmarks/results/plans.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from models import image_model
from results import Row, write_csv

from torch_reformer.compiler.plan import planned

MODELS = ["resnet50:128", "resnext50_32x4d:128", "convnext_tiny:128", "mobilenet_v3_large:256", "efficientnet_b0:128"]
MODELS += ["densenet121:64", "vit_b_16:64"]


class Autocast(torch.nn.Module):
    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(images)


def figures(lines: list) -> dict[str, float]:
    return {
        "count": len(lines),
        "gigabytes": sum(each.read + each.written for each in lines) / 1e9,
        "expected_ms": sum(each.us for each in lines) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME:BATCH")
    parser.add_argument("--device", default="sm_90", help="the GPU's architecture")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'':24}{'kernels and calls':>22}{'GB':>16}{'ms':>16}   (one kernel an operation in brackets)")
    for model in options.models:
        name, _, batch = model.partition(":")
        network = Autocast(image_model(name)).to(memory_format=torch.channels_last)
        images = torch.empty(1, 3, 224, 224).expand(int(batch), -1, -1, -1)
        reports = planned(network, (images,), options.device)
        sides = {"plan": [line for each in reports for line in each.lines]}
        sides["operations"] = [line for each in reports for line in each.alone]
        found = {side: figures(lines) for side, lines in sides.items()}
        for side, values in found.items():
            rows += [Row.of("plans", model, side, metric, [value], options.device) for metric, value in values.items()]
        cells = [f"{found['plan'][metric]:.4g} ({found['operations'][metric]:.4g})" for metric in found["plan"]]
        print(f"{model:24}{cells[0]:>22}{cells[1]:>16}{cells[2]:>16}", flush=True)
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
