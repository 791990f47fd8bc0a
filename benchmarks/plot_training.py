"""Plots the training steps in the CSV of benchmarks/train_models.py: one bar per side, with its speed-up over PyTorch,
and the time that the GPU was busy during a step.

    python benchmarks/plot_training.py benchmarks/results/h200/train_models-compiler.csv docs/training-steps.png
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from results import read_csv

# Metric of each panel, and the names of the sides; the first side is the baseline.
PANELS = {"a training step": "step_ms", "of which kernels run": "kernels_ms"}
SIDES = {"torch": "PyTorch", "compiled": "torch.compile", "reformer": 'backend="reformer"'}
COLORS = {"torch": "#b8bcc2", "compiled": "#7f9cc0", "reformer": "#d9622b"}
MODELS = {
    "resnet50": "ResNet-50",
    "resnext50_32x4d": "ResNeXt-50",
    "convnext_tiny": "ConvNeXt-T",
    "mobilenet_v3_large": "MobileNetV3",
    "efficientnet_b0": "EfficientNet",
    "densenet121": "DenseNet",
    "vit_b_16": "ViT-B",
    "bert_large": "BERT-large",
}
BAR = 0.27  # width, as a fraction of the distance between two models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()

    times: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in read_csv(options.csv):
        if row.provider in SIDES:
            times[row.metric][row.case.partition(":")[0]][row.provider] = row.p50

    figure, axes = plt.subplots(len(PANELS), figsize=(11, 6), sharex=True)
    for axis, (title, metric) in zip(axes, PANELS.items(), strict=True):
        models = {name: times[metric][name] for name in MODELS if name in times[metric]}
        for number, (side, name) in enumerate(SIDES.items()):
            places = [place + BAR * (number - 1) for place in range(len(models))]
            bars = axis.bar(places, [of[side] for of in models.values()], 0.92 * BAR, color=COLORS[side], label=name)
            words = [f"{of[side]:.1f}" + f"\n{of['torch'] / of[side]:.2f}x" * (number > 0) for of in models.values()]
            axis.bar_label(bars, words, fontsize=7, padding=2)
        axis.set_xticks(range(len(models)), [MODELS[name] for name in models])
        axis.set_title(title, fontsize=10)
        axis.set_ylabel("milliseconds")
        axis.set_ylim(0, 1.3 * max(max(of.values()) for of in models.values()))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=9, loc="upper left")
    figure.tight_layout()
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
