"""How long a kernel is expected to take on a GPU: to start, and then as long as its bytes or its arithmetic take."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from .ir import Call, Conv, ConvGrads, Operation, View, replaced


class Gpu(NamedTuple):
    """Figures of data sheets: gigabytes a second, and teraflops (dense, 16 bits)."""

    bandwidth: float
    arithmetic: float


GPUS = {
    "sm_80": Gpu(2039, 312),  # A100 80GB
    "sm_90": Gpu(4800, 989),  # H200
    "sm_100": Gpu(8000, 2250),  # B200
    "gfx908": Gpu(1229, 185),  # MI100
    "gfx90a": Gpu(3277, 383),  # MI250X, both dies
    "gfx942": Gpu(5300, 1307),  # MI300X
}
_REACHED = 0.9, 0.8  # of the bandwidth and of the arithmetic, by good kernels on an H200
_START_US = 3
_CPU = 50  # gigabytes a second, of one that is not known


def us_of_bytes(architecture: str | None, bytes: float) -> float:
    """Without a start; on a CPU where there is no architecture."""
    bandwidth = GPUS[architecture].bandwidth * _REACHED[0] if architecture else _CPU
    return bytes / (bandwidth * 1e3)


def bytes_of_start(architecture: str | None) -> float:
    """What is moved while a kernel starts."""
    return _START_US / us_of_bytes(architecture, 1)


def predicted_us(architecture: str, bytes: int, flops: int) -> float:
    """Raises ValueError for an architecture that is not known."""
    if architecture not in GPUS:
        raise ValueError(f"no times are known of {architecture!r}; of {', '.join(GPUS)} they are")
    computing = flops / (GPUS[architecture].arithmetic * 1e6 * _REACHED[1])
    return _START_US + max(us_of_bytes(architecture, bytes), computing)


def flops(operation: Operation) -> int:
    """Multiplications and additions of a convolution, and of those calls that PyTorch's own counter knows; others move
    bytes."""
    if isinstance(operation, (Conv, ConvGrads)):
        outputs = operation.grad.layout if isinstance(operation, ConvGrads) else operation.results[0].layout
        _, channels, height, width = operation.weight.layout.sizes
        directions = sum(operation.wanted) if isinstance(operation, ConvGrads) else 1
        return 2 * directions * outputs.numel * channels * height * width
    count = flop_registry.get(operation.operator.overloadpacket) if isinstance(operation, Call) else None
    if count is None:
        return 0
    results = [_meta(View(each, each.layout)) for each in operation.results]
    args, kwargs = (replaced(each, _meta) for each in (operation.args, operation.kwargs))
    return count(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results))


def _meta(view: View) -> Tensor:
    return torch.empty_strided(view.layout.sizes, view.layout.strides, dtype=view.value.dtype, device="meta")
