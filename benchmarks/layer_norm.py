"""Layer norm in half precision, forward and backward, with fp32 parameters: this package's kernels, PyTorch's in the
same data type, PyTorch's as autocast runs them (fp32, between two casts), and a copy of the input. The rows of
ConvNeXt-T, in turns.

    python benchmarks/layer_norm.py --csv benchmarks/results/h200/layer_norm.csv
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from results import Row, geomean, options_of_gpu, write_csv

from torch_reformer.tuning.timing import interleaved, percentiles
from torch_reformer.tuning.workload import device_name, usable_device

# pixels of a image, channels
CONVNEXT_T = [(56 * 56, 96), (28 * 28, 192), (14 * 14, 384), (7 * 7, 768)]
EPS, MASK = 1e-6, [True, True, True]
FORWARD = "forward", "torch forward", "torch forward by autocast", "copy"
BACKWARD = "backward", "torch backward", "torch backward by autocast"


def calls_of(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> dict[str, Callable[[], object]]:
    x, grad = (torch.randn(rows, width, device=device).to(dtype) for _ in range(2))
    weight, bias = torch.randn(width, device=device), torch.randn(width, device=device)
    half = [each.to(dtype) for each in (weight, bias)]
    ours, aten = torch.ops.reformer, torch.ops.aten
    statistics = ours._layer_norm(x, weight, bias, EPS, dtype)[1]
    known, known_by_autocast = (
        torch.native_layer_norm(x.to(each), [width], None, None, EPS)[1:] for each in (dtype, torch.float32)
    )

    def forward_by_autocast():
        return torch.native_layer_norm(x.float(), [width], weight, bias, EPS)[0].to(dtype)

    wide = x.float()  # which autocast keeps from the forward

    def backward_by_autocast():
        return aten.native_layer_norm_backward(grad.float(), wide, [width], *known_by_autocast, weight, bias, MASK)[
            0
        ].to(dtype)

    return dict(
        zip(
            FORWARD + BACKWARD,
            [
                lambda: ours._layer_norm(x, weight, bias, EPS, dtype),
                lambda: torch.native_layer_norm(x, [width], *half, EPS),
                forward_by_autocast,
                x.clone,
                lambda: ours._layer_norm_backward(grad, x, statistics, weight, 7),
                lambda: aten.native_layer_norm_backward(grad, x, [width], *known, *half, MASK),
                backward_by_autocast,
            ],
            strict=True,
        )
    )


def main() -> None:
    options = options_of_gpu(__doc__)
    device, dtype = usable_device(options.device), getattr(torch, options.dtype)
    where, rows, ratios = device_name(device), [], []
    for pixels, width in CONVNEXT_T:
        calls = calls_of(options.batch * pixels, width, dtype, device)
        with torch.inference_mode():
            times = interleaved(calls, seconds=0.1, device=device)
        case = f"{options.batch * pixels}x{width}"
        rows += [Row.of("layer_norm", case, name, "time_us", us, where) for name, us in times.items()]
        median = {name: percentiles(us)[1] for name, us in times.items()}
        ratios.append((median["torch forward"] / median["forward"], median["torch backward"] / median["backward"]))
        print(f"{case:12}" + "".join(f"{name} {median[name]:.1f}  " for name in calls))
    print("PyTorch's over ours: forward {:.2f}, backward {:.2f}".format(*map(geomean, zip(*ratios, strict=True))))
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
