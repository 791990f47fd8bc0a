"""How long a kernel is expected to take on a GPU: to start, and then what its bytes and its arithmetic add.

How much they add is fitted for each kind of kernel to timings on an H100 (benchmarks/fit_plan_costs.py writes
costs.json), as multiples of what the data sheet's figures give; so it serves other GPUs, too."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..runtime.native import gpu_specs
from .ir import Call, Casts, Conv, ConvGrads, Operation, Reduce, View, replaced
from .regions import Region

TABLE = Path(__file__).parent / "costs.json"
OTHERS = "others"  # kinds of which there were few timings
_PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
_CPU = 50  # gigabytes a second, of one that is not known


class Gpu(NamedTuple):
    """Figures of data sheets: gigabytes a second, and teraflops (dense, 16 bits)."""

    bandwidth: float
    arithmetic: float


def _known() -> dict[str, Gpu]:
    """By their architecture, or by their name where the architecture's usual one is another."""
    known = {}
    for spec in gpu_specs():
        if spec.gb_per_s:
            architecture = spec.architecture.decode()
            known[spec.name.decode() if architecture in known else architecture] = Gpu(spec.gb_per_s, spec.tflops)
    return known


GPUS = _known()


class Fitted(NamedTuple):
    """Microseconds to start, and multiples of those that bytes and arithmetic take by the data sheet."""

    start: float
    of_bytes: float
    of_flops: float

    def us(self, gpu: Gpu, bytes: float, flops: float) -> float:
        return sum(each * term for each, term in zip(self, terms(gpu, bytes, flops), strict=True))


def terms(gpu: Gpu, bytes: float, flops: float) -> tuple[float, float, float]:
    """What Fitted multiplies."""
    return 1, bytes / (gpu.bandwidth * 1e3), flops / (gpu.arithmetic * 1e6)


@functools.cache
def _table() -> dict[str, Fitted]:
    return {kind: Fitted(*numbers) for kind, numbers in json.loads(TABLE.read_text()).items()}


def known_gpu(architecture: str, name: str) -> str | None:
    """The key of GPUS of a GPU with this architecture and name; None if there is none."""
    return next((key for key in GPUS if key in name.split()), architecture if architecture in GPUS else None)


def us_of_bytes(gpu: str | None, bytes: float) -> float:
    """In a stitched kernel, without its start; on a CPU where there is no GPU."""
    return bytes / (_CPU * 1e3) if gpu is None else _table()["stitch"]._replace(start=0).us(GPUS[gpu], bytes, 0)


def bytes_of_start(gpu: str | None) -> float:
    """What is moved while a stitched kernel starts."""
    return _table()["stitch"].start / us_of_bytes(gpu, 1)


def predicted_us(gpu: str, kind: str, bytes: int, flops: int) -> float:
    """kind: as kind_of() says. Raises ValueError for a GPU that is not known."""
    if gpu not in GPUS:
        raise ValueError(f"no times are known of {gpu!r}; of {', '.join(GPUS)} they are")
    return (_table().get(kind) or _table()[OTHERS]).us(GPUS[gpu], bytes, flops)


def kind_of(group: Region | Operation) -> str:
    """What kernels are alike in their costs: those of this region or call are."""
    if isinstance(group, Region):
        if group.anchor:
            return kind_of(group.anchor)
        reduces = any(isinstance(each, Reduce) and id(each) not in group.of_rows for each in group.members)
        words = ["stitch", *(["rows"] if group.rows else []), *(["columns"] if reduces else [])]
        return " ".join([*words, *(["turned"] if group.turned else [])])
    if isinstance(group, (Conv, ConvGrads)):
        return f"{'conv' if isinstance(group, Conv) else 'conv grads'} {_filters(group)}"
    if isinstance(group, Casts):
        return "casts"
    if isinstance(group, Call):
        return kind_of_operator(group.operator)
    return "stitch"


def kind_of_operator(operator) -> str:
    packet = getattr(operator, "overloadpacket", operator)
    return "product" if packet in _PRODUCTS else str(packet).replace(".", "::")


def _filters(operation: Conv | ConvGrads) -> str:
    _, channels, height, width = operation.weight.layout.sizes
    if operation.geometry.groups > 1:
        return "depthwise" if channels == 1 else "grouped"
    return "pointwise" if height == width == 1 else "dense"


def flops(operation: Operation) -> int:
    """Multiplications and additions of a convolution, and of those calls that PyTorch's own counter knows; others move
    bytes."""
    if isinstance(operation, (Conv, ConvGrads)):
        outputs = operation.grad.layout if isinstance(operation, ConvGrads) else operation.results[0].layout
        _, channels, height, width = operation.weight.layout.sizes
        directions = sum(operation.wanted) if isinstance(operation, ConvGrads) else 1
        return 2 * directions * outputs.numel * channels * height * width
    if not isinstance(operation, Call):
        return 0
    from torch.utils.flop_counter import flop_registry  # which imports Triton where it is installed

    if (count := flop_registry.get(operation.operator.overloadpacket)) is None:
        return 0
    results = [_meta(View(each, each.layout)) for each in operation.results]
    args, kwargs = (replaced(each, _meta) for each in (operation.args, operation.kwargs))
    return count(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results))


def _meta(view: View) -> Tensor:
    return torch.empty_strided(view.layout.sizes, view.layout.strides, dtype=view.value.dtype, device="meta")
