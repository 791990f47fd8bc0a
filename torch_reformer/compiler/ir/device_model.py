"""Expected times of kernels on a device: bytes and operations by fitted rates."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...operators.dispatch import allows_tf32
from ...runtime.native import gpu_specs
from .graph import Call, Conv, ConvGrads, Operation, View, replaced

TABLE = Path(__file__).parent / "costs.json"
OTHERS = "others"  # kinds of which there were few timings
# The CPU's attention, for one that PyTorch counts.
_COUNTED_AS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ),
}
_PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
_CPU = 50  # gigabytes a second, of one that is not known


class Gpu(NamedTuple):
    """Figures of data sheets: gigabytes a second, and teraflops of dense products of matrices in 16 bits, in TF32, in
    fp32 and in fp64."""

    bandwidth: float
    arithmetic: float
    tf32: float
    single: float
    double: float


def _known() -> dict[str, Gpu]:
    """By their architecture, or by their name where the architecture's usual one is another."""
    known = {}
    for spec in gpu_specs():
        if spec.gb_per_s:
            architecture = spec.architecture.decode()
            known[spec.name.decode() if architecture in known else architecture] = Gpu(
                spec.gb_per_s, spec.tflops, spec.tf32_tflops, spec.fp32_tflops, spec.fp64_tflops
            )
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


def predicted_us(gpu: str, kind: str, bytes: int, flops: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """kind: as kind_of() says. dtype: of what is multiplied. Raises ValueError for a GPU that is not known."""
    if gpu not in GPUS:
        raise ValueError(f"no times are known of {gpu!r}; of {', '.join(GPUS)} they are")
    return (_table().get(kind) or _table()[OTHERS]).us(GPUS[gpu], bytes, flops * slowness(GPUS[gpu], kind, dtype))


def slowness(gpu: Gpu, kind: str, dtype: torch.dtype) -> float:
    """How many times as long as in 16 bits, to whose timings all is fitted, arithmetic in this type takes. Depthwise
    convolutions are computed in fp32 in any case."""
    if dtype.itemsize <= 2 or kind.endswith("depthwise"):
        return 1
    if dtype.itemsize == 8:
        return gpu.arithmetic / gpu.double
    of = "conv" if kind.startswith(("conv", "aten::conv", "aten::_conv")) else "matmul"
    return gpu.arithmetic / (gpu.tf32 if allows_tf32(of) else gpu.single)


def kind_of_operator(operator) -> str:
    packet = getattr(operator, "overloadpacket", operator)
    return "product" if packet in _PRODUCTS else str(packet).replace(".", "::")


def flops(operation: Operation) -> int:
    """Multiplications and additions of a convolution, and of those calls that PyTorch's own counter knows, or that
    compute the same; others move bytes."""
    if isinstance(operation, (Conv, ConvGrads)):
        outputs = operation.grad.layout if isinstance(operation, ConvGrads) else operation.results[0].layout
        _, channels, height, width = operation.weight.layout.sizes
        directions = sum(operation.wanted) if isinstance(operation, ConvGrads) else 1
        return 2 * directions * outputs.numel * channels * height * width
    count = flops_of_operator(operation.operator) if isinstance(operation, Call) else None
    if count is None:
        return 0
    results = [_meta(View(each, each.layout)) for each in operation.results]
    args, kwargs = (replaced(each, _meta) for each in (operation.args, operation.kwargs))
    return count(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results))


def flops_of_operator(operator) -> Callable | None:
    """The counter of an operator's flops, which takes its arguments, and its result as out_val."""
    from torch.utils.flop_counter import flop_registry  # which imports Triton where it is installed

    packet = getattr(operator, "overloadpacket", None)
    return flop_registry.get(_COUNTED_AS.get(packet, packet))


def multiplied_type(operation: Operation) -> torch.dtype:
    """The type of what a convolution or call multiplies."""
    types = [each.value.dtype for each in operation.operands]
    return next((each for each in types if each.is_floating_point), torch.float32)


def _meta(view: View) -> Tensor:
    return torch.empty_strided(view.layout.sizes, view.layout.strides, dtype=view.value.dtype, device="meta")
