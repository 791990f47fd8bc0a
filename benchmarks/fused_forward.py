"""Measures the cost of programs after convolutions, forward: bias and ReLU, a residual with them, and the channels'
moments, which batch norm needs.

It times each convolution without and with the programs, both by the ways that the selectors choose, and PyTorch's
three operations, interleaved. The convolutions are drawn from models of timm, channels_last.

    python benchmarks/fused_forward.py --csv benchmarks/results/h200/fused_forward.csv
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
import torch.nn.functional as F
from models import image_model
from results import Row, geomean, options_of_gpu, write_csv
from torch import Tensor, nn

import torch_reformer
from torch_reformer import ConvProblem
from torch_reformer.operators import fused_programs
from torch_reformer.tuning.timing import interleaved, percentiles
from torch_reformer.tuning.workload import device_name, usable_device

MODELS = "timm/resnet50", "timm/resnext50_32x4d", "timm/efficientnet_b0", "timm/densenet121"
LAYERS, SEED, IMAGE = 15, 0, 224  # layers of each model
LONG = 15  # us of a convolution alone
ALONE, RELU, PYTORCH = "convolution alone", "with bias and relu", "torch's, with bias and relu"
RESIDUAL, MOMENTS, READING = "with bias, residual and relu", "with moments", "reading the residual"


def layers_of(name: str) -> list[tuple[nn.Conv2d, tuple[int, int, int]]]:
    """Some of the model's convolutions, of different geometries, each with its input's channels, height and width. Of
    images of one pixel, as in squeeze-and-excitation, there are none."""
    found: dict[str, tuple[nn.Conv2d, tuple[int, int, int]]] = {}

    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Conv2d)
        channels, height, width = inputs[0].shape[1:]
        if height * width > 1:
            found.setdefault(f"{module} of {inputs[0].shape}", (module, (channels, height, width)))

    with torch.device("meta"):
        model, images = image_model(name), torch.empty(2, 3, IMAGE, IMAGE)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(hook)
    model(images)
    return Random(SEED).sample(list(found.values()), min(LAYERS, len(found)))


def programs(conv: nn.Conv2d, x: Tensor) -> tuple[dict[str, Callable[[], object]], Tensor]:
    """The convolution without and with programs, and a tensor like its result."""
    tensor = {"device": x.device, "dtype": x.dtype}
    fan_in = conv.weight[0].numel()
    w = (torch.randn(conv.weight.shape, **tensor) / fan_in**0.5).to(memory_format=torch.channels_last)
    b, geometry = torch.randn(len(w), **tensor), (conv.stride, conv.padding, conv.dilation, conv.groups)
    residual = torch.randn_like(F.conv2d(x, w, None, *geometry))
    moments = fused_programs.moments(frozenset())
    added = fused_programs.act(frozenset({"bias", "residual"}), "relu")
    tensors = {"bias": b, "residual": residual}
    calls: dict[str, Callable[[], object]] = {
        ALONE: lambda: torch_reformer.conv2d(x, w, None, *geometry),
        RELU: lambda: torch_reformer.conv2d_act(x, w, b, *geometry),
        RESIDUAL: lambda: torch_reformer.conv2d_epilogue(x, w, added, tensors, *geometry),
        MOMENTS: lambda: torch_reformer.conv2d_epilogue(x, w, moments, {}, *geometry),
        PYTORCH: lambda: F.relu(F.conv2d(x, w, b, *geometry)),
    }
    return calls, residual


def us_a_byte(device: torch.device) -> float:
    """Microseconds for a byte that is read or written, by copying 256 MiB."""
    source = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = interleaved({"copy": lambda: target.copy_(source)}, seconds=0.1, device=device)
    return percentiles(times["copy"])[1] / (2 * source.numel())


def main() -> None:
    options = options_of_gpu(__doc__)
    device, dtype = usable_device(options.device), getattr(torch, options.dtype)
    dtype_name = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}[options.dtype]
    name, rows, byte = device_name(device), [], us_a_byte(device)
    ratios: dict[str, list[float]] = {RELU: [], RESIDUAL: [], MOMENTS: [], PYTORCH: []}
    groups: list[str] = []
    for conv, (c, h, w) in {str(layer): layer for model in MODELS for layer in layers_of(model)}.values():
        x = torch.randn(options.batch, c, h, w, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        with torch.inference_mode():
            calls, residual = programs(conv, x)
            times = interleaved(calls, seconds=0.1, device=device)
        times[READING] = [byte * residual.numel() * residual.element_size()]
        geometry = (*conv.padding, *conv.stride, *conv.dilation, conv.groups)
        sizes = (options.batch, c, h, w, conv.out_channels, *conv.kernel_size)
        problem = str(ConvProblem(*sizes, *geometry, dtype=dtype_name, layout="NHWC"))
        rows += [Row.of("fused_forward", problem, call, "time_us", us, name) for call, us in times.items()]
        us = {call: percentiles(found)[1] for call, found in times.items()}
        floor = us | {RELU: us[ALONE], MOMENTS: us[ALONE], RESIDUAL: us[ALONE] + us[READING], PYTORCH: us[RELU]}
        for call, found in ratios.items():
            found.append(us[call] / floor[call])
        is_product = conv.kernel_size == (1, 1) and conv.stride == (1, 1)
        groups.append(f"{'1x1' if is_product else 'others'}, {'long' if us[ALONE] >= LONG else 'short'}")
        print(f"{problem:85} {us[ALONE]:8.2f}", *(f"{found[-1]:6.3f}" for found in ratios.values()))
    print(f"{len(ratios[RELU])} convolutions; over the convolution alone, with a residual also over reading that once:")
    for call in (RELU, RESIDUAL, MOMENTS):
        print(f"  {call}: {geomean(ratios[call]):.3f}, at most {max(ratios[call]):.3f}")
        for group in sorted(set(groups)):
            of_group = [ratio for ratio, its in zip(ratios[call], groups, strict=True) if its == group]
            print(f"    {len(of_group)} {group}: {geomean(of_group):.3f}")
    print(f"PyTorch's over bias and relu: {geomean(ratios[PYTORCH]):.2f}")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
