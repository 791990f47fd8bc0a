"""Measures the cost of a bias and an activation after a convolution, forward.

It times the convolution without them, with bias and ReLU fused into it, and PyTorch's three operations, interleaved. It
also times the moments of the channels, which batch norm needs, computed by a separate pass and within each kernel that
can do so. The convolutions are those of ResNet-50, channels_last.

    python benchmarks/fused_forward.py --csv benchmarks/results/h200/fused_forward.csv
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from results import Row, geomean, options_of_gpu, write_csv

import torch_reformer
from torch_reformer import ConvProblem
from torch_reformer.operators import fused_programs
from torch_reformer.runtime import native
from torch_reformer.tuning.timing import interleaved, percentiles
from torch_reformer.tuning.workload import device_name, usable_device

# c, size, k, filter, stride
RESNET_50 = [
    (3, 224, 64, 7, 2),
    *((64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1)),
    *((256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (128, 28, 512, 1, 1), (512, 28, 128, 1, 1), (128, 28, 128, 3, 1)),
    *((512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (1024, 14, 256, 1, 1), (256, 14, 256, 3, 1)),
    *((1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (2048, 7, 512, 1, 1), (512, 7, 512, 3, 1)),
]
ALONE, FUSED, PYTORCH = "convolution alone", "with bias and relu", "torch's, with bias and relu"
MOMENTS, INSIDE = "with moments", "with moments in "


def forced(solver: str, call: Callable[[], object]) -> Callable[[], object]:
    def run():
        with torch_reformer.config(force=solver):
            return call()

    return run


def main() -> None:
    options = options_of_gpu(__doc__)
    device, dtype = usable_device(options.device), getattr(torch, options.dtype)
    name, rows, ratios, over_torch, of_moments = device_name(device), [], [], [], []
    moments = fused_programs.moments(frozenset())
    for c, size, k, filter, stride in RESNET_50:
        pad, kind = filter // 2, {"device": device, "dtype": dtype}
        x = torch.randn(options.batch, c, size, size, **kind).to(memory_format=torch.channels_last)
        w = (
            torch.randn(k, c, filter, filter, **kind).to(memory_format=torch.channels_last)
            / (c * filter * filter) ** 0.5
        )
        b = torch.randn(k, **kind)
        calls = {
            ALONE: lambda x=x, w=w, s=stride, p=pad: torch_reformer.conv2d(x, w, None, s, p),
            FUSED: lambda x=x, w=w, b=b, s=stride, p=pad: torch_reformer.conv2d_act(x, w, b, s, p),
            PYTORCH: lambda x=x, w=w, b=b, s=stride, p=pad: F.relu(F.conv2d(x, w, b, s, p)),
        }
        calls[MOMENTS] = lambda x=x, w=w, s=stride, p=pad: torch_reformer.conv2d_epilogue(x, w, moments, {}, s, p)
        calls |= {
            INSIDE + solver: forced(solver, calls[MOMENTS])
            for solver in native.solver_names()
            if solver.startswith("gpu_tma_gemm_") and native.has_tma(name) and c % 8 == 0
        }
        with torch.inference_mode():
            times = interleaved(calls, seconds=0.1, device=device)
        alone, fused, theirs, after, *inside = (percentiles(times[call])[1] for call in calls)
        dtype_name = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}[options.dtype]
        problem = ConvProblem(
            options.batch, c, size, size, k, filter, filter, pad, pad, stride, stride, dtype=dtype_name, layout="NHWC"
        )
        chosen = native.solver_names()[native.decide(problem.native(), name)]
        rows += [Row.of("fused_forward", str(problem), call, "time_us", us, name) for call, us in times.items()]
        ratios.append(fused / alone)
        over_torch.append(theirs / fused)
        line = f"{str(problem):75} {chosen:24} {alone:8.2f} {fused:8.2f} {fused / alone:6.3f} {theirs / fused:6.2f}"
        if inside:
            of_moments.append(after / min(inside))
            line += f" {after:8.2f} {min(inside):8.2f}"
        print(line)
    print(f"fused over alone: {geomean(ratios):.3f}, at most {max(ratios):.3f}")
    print(f"PyTorch's over fused: {geomean(over_torch):.2f}")
    if of_moments:
        print(f"moments after the chosen kernel over those in the best one: {geomean(of_moments):.3f}")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
