"""Plots the training steps of benchmarks/train_models.py's CSV: a bar for each side, with its speed-up over PyTorch.

Sides that launch their kernels one by one are compared with each other, and sides in CUDA graphs with each other.

    python benchmarks/plot_training.py benchmarks/results/h200/train_models.csv docs/training-steps.png
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from results import read_csv

# Each panel's sides, the first of which is the peer, and how a bar is named.
PANELS = {
    "kernels launched one by one": {"torch": "PyTorch", "compiled": "torch.compile", "fused": "torch_reformer"},
    "CUDA graphs": {
        "torch_graphed": "PyTorch",
        "compiled_graphed": "torch.compile",
        "reformer_graphed": "torch_reformer",
    },
}
COLORS = {"PyTorch": "#b8bcc2", "torch.compile": "#7f9cc0", "torch_reformer": "#d9622b"}
# Models with the batches of benchmarks/train_models.py.
MODELS = {
    "resnet50": "ResNet-50\nbatch 128",
    "convnext_tiny": "ConvNeXt-T\nbatch 128",
    "mobilenet_v3_large": "MobileNetV3-L\nbatch 256",
}
BAR = 0.27  # of the distance between two models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()

    steps: dict[str, dict[str, float]] = defaultdict(dict)
    for row in read_csv(options.csv):
        if row.metric == "step_ms":
            steps[row.case][row.provider] = row.p50

    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 3.4), sharey=True)
    for axis, (title, sides) in zip(axes, PANELS.items(), strict=True):
        peer = next(iter(sides))
        measured = [side for side in sides if all(side in of for of in steps.values())]
        for number, side in enumerate(measured):
            name = sides[side]
            places = [place + BAR * (number - (len(measured) - 1) / 2) for place in range(len(steps))]
            bars = axis.bar(places, [of[side] for of in steps.values()], 0.92 * BAR, color=COLORS[name], label=name)
            words = [f"{of[side]:.1f}" + f"\n{of[peer] / of[side]:.2f}x" * (side != peer) for of in steps.values()]
            axis.bar_label(bars, words, fontsize=8, padding=2)
        axis.set_xticks(range(len(steps)), [MODELS.get(name.partition(":")[0], name) for name in steps])
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=9, loc="upper right")
    axes[0].set_ylabel("milliseconds a training step")
    axes[0].set_ylim(0, 1.25 * max(max(of.values()) for of in steps.values()))
    figure.tight_layout()
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
