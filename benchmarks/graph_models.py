"""Times training steps of whole models by PyTorch, by torch.compile's default backend and by this one, interleaved, and
prints the speed-ups over PyTorch that papers on fusion publish for the same models.

    python benchmarks/graph_models.py --csv benchmarks/results/h100/graph_models.csv
    python benchmarks/graph_models.py --graphed --models resnet50:128  # also in CUDA graphs

The papers measured on other machines and against the PyTorch of their time, so their factors show how much fusion
gained there. EVT (Chen et al., ASPLOS 2024) used an A100 in fp16; FusionStitching (Zheng et al., 2020) used a V100 and
compared with XLA.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
import train_models
from results import Row, geomean, write_csv

from torch_reformer.tuning.workload import device_name, usable_device

# Published speed-ups over PyTorch, or None; FusionStitching's geometric mean over XLA is 1.4.
OF_PAPERS = {
    "resnet50:128": 1.91,
    "convnext_tiny:128": None,
    "mobilenet_v3_large:256": None,
    "efficientnet_b0:128": None,
    "resnext50_32x4d:128": None,
    "vit_b_16:64": 1.21,
    "bert_large:16x512": 1.39,
    "xml_cnn:1024": 3.12,
    "gcn:7": 1.55,
    "dien:256": 1.4,
    "transformer:64x64": 1.4,
}
PLAIN, GRAPHED = ("torch", "compiled", "reformer"), ("compiled_graphed", "reformer_graphed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(OF_PAPERS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--graphed", action="store_true", help="in CUDA graphs, too")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device, sides = usable_device("cuda"), [*PLAIN, *(GRAPHED if options.graphed else ())]
    rows: list[Row] = []
    ratios: dict[str, list[float]] = {}
    heads = [f"{side} step, kernels, peak MiB" for side in sides]
    print(f"| model | {' | '.join(heads)} | over torch | over compiled | published |")
    print("|---" * (len(heads) + 4) + "|")
    for name in options.models.split(","):
        times, _, peaks = train_models.measure(name, options.steps, sides, device, torch.bfloat16)
        step = {side: statistics.median(times[side]["step_ms"]) for side in sides}
        for side in sides:
            rows += [
                Row.of("graph_models", name, side, metric, values, device_name(device))
                for metric, values in (times[side] | {"peak_mib": [peaks[side]]}).items()
            ]
        cells = [
            f"{step[side]:.2f}, {statistics.median(times[side]['kernels_ms']):.2f}, {peaks[side]:.0f}" for side in sides
        ]
        over = {"torch": step["torch"] / step["reformer"], "compiled": step["compiled"] / step["reformer"]}
        if options.graphed:
            over["compiled, in graphs"] = step["compiled_graphed"] / step["reformer_graphed"]
        for peer, ratio in over.items():
            ratios.setdefault(peer, []).append(ratio)
        cells += [f"{over['torch']:.2f}", f"{over['compiled']:.2f}", str(OF_PAPERS.get(name) or "-")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if options.csv:
            write_csv(options.csv, rows)
        torch._dynamo.reset()
    print(", ".join(f"over {peer} {geomean(each):.2f}" for peer, each in ratios.items()))


if __name__ == "__main__":
    main()
