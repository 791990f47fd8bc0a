"""Expected times of kernels, from their bytes and arithmetic by rates that are fitted to timings (costs.json)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...operators.dispatch import allows_tf32
from ...runtime.native import gpu_specs
from .custom_ops import add_product
from .graph import Call, Conv, ConvGrads, Operation, View, replaced

TABLE = Path(__file__).parent / "costs.json"
OTHERS = "others"  # key of TABLE for kinds with few timings
# PyTorch counts the flops of these operators, but not of those that compute the same.
_COUNTED_AS = {
    add_product.overloadpacket: torch.ops.aten.addmm,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ),
}
_PRODUCTS = {
    add_product.overloadpacket,
    torch.ops.aten.mm,
    torch.ops.aten.addmm,
    torch.ops.aten.bmm,
    torch.ops.aten.baddbmm,
}
_CPU = 50  # gigabytes per second that are assumed of a CPU


class Gpu(NamedTuple):
    """Figures of data sheets: gigabytes per second, and dense teraflops of matrix products in 16 bits, TF32, fp32 and
    fp64. has_tma: it runs this package's kernels for Hopper."""

    bandwidth: float
    arithmetic: float
    tf32: float
    single: float
    double: float
    has_tma: bool = False


def _known() -> dict[str, Gpu]:
    """GPUs by their architecture, or by their name where another GPU already stands for the architecture."""
    known = {}
    for spec in gpu_specs():
        if spec.gb_per_s:
            architecture = spec.architecture.decode()
            known[spec.name.decode() if architecture in known else architecture] = Gpu(
                spec.gb_per_s, spec.tflops, spec.tf32_tflops, spec.fp32_tflops, spec.fp64_tflops, spec.has_tma
            )
    return known


GPUS = _known()


class Fitted(NamedTuple):
    """Microseconds to start a kernel, and factors on the times that bytes and arithmetic take by the data sheet."""

    start: float
    of_bytes: float
    of_flops: float

    def us(self, gpu: Gpu, bytes: float, flops: float) -> float:
        """Expected microseconds of a kernel."""
        return sum(factor * term for factor, term in zip(self, terms(gpu, bytes, flops), strict=True))


def terms(gpu: Gpu, bytes: float, flops: float) -> tuple[float, float, float]:
    """The terms that the factors of Fitted multiply: 1, and microseconds of bytes and of flops by the data sheet."""
    return 1, bytes / (gpu.bandwidth * 1e3), flops / (gpu.arithmetic * 1e6)


@functools.cache
def _table() -> dict[str, Fitted]:
    return {kind: Fitted(*numbers) for kind, numbers in json.loads(TABLE.read_text()).items()}


def known_gpu(architecture: str, name: str) -> str | None:
    """The key of GPUS of a GPU with this architecture and name; None if there is none."""
    return next((key for key in GPUS if key in name.split()), architecture if architecture in GPUS else None)


def device_of(gpu: str) -> str:
    """The device of a key of GPUS, as the library names it."""
    specs = {spec.name.decode(): spec.architecture.decode() for spec in gpu_specs()}
    return f"{specs[gpu]}:{gpu}" if gpu in specs else gpu


def us_of_bytes(gpu: str | None, bytes: float) -> float:
    """Microseconds to move bytes in a stitched kernel, without its start; on a CPU if `gpu` is None."""
    return bytes / (_CPU * 1e3) if gpu is None else _table()["stitch"]._replace(start=0).us(GPUS[gpu], bytes, 0)


def bytes_of_start(gpu: str | None) -> float:
    """Bytes that could be moved in the time that a stitched kernel takes to start."""
    return _table()["stitch"].start / us_of_bytes(gpu, 1)


def predicted_us(gpu: str, kind: str, bytes: int, flops: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """Expected microseconds of a kernel.

    Args:
        gpu: a key of GPUS.
        kind: kind of kernel, as kind_of() gives it.
        dtype: data type of the factors of its products.

    Raises:
        ValueError: the GPU is not known.
    """
    if gpu not in GPUS:
        raise ValueError(f"no times are known of the GPU {gpu!r}; they are known of {', '.join(GPUS)}")
    return (_table().get(kind) or _table()[OTHERS]).us(GPUS[gpu], bytes, flops * slowness(GPUS[gpu], kind, dtype))


def roof_us(gpu: str, kind: str, bytes: int, flops: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """Microseconds by the data sheet of the bytes or of the arithmetic, whichever takes longer. Arguments as for
    predicted_us."""
    return max(terms(GPUS[gpu], bytes, flops * slowness(GPUS[gpu], kind, dtype))[1:])


def slowness(gpu: Gpu, kind: str, dtype: torch.dtype) -> float:
    """Time of arithmetic in this data type, relative to 16 bits, whose timings the table is fitted to. 1 for depthwise
    convolutions, which compute in fp32 for every data type."""
    if dtype.itemsize <= 2 or kind.endswith("depthwise"):
        return 1
    if dtype.itemsize == 8:
        return gpu.arithmetic / gpu.double
    family = "conv" if kind.startswith(("conv", "aten::conv", "aten::_conv")) else "matmul"
    return gpu.arithmetic / (gpu.tf32 if allows_tf32(family) else gpu.single)


def kind_of_operator(operator) -> str:
    """Kind of an extern call: "product", or the operator's name without its overload."""
    packet = getattr(operator, "overloadpacket", operator)
    return "product" if packet in _PRODUCTS else str(packet).replace(".", "::")


def flops(operation: Operation) -> int:
    """Multiplications and additions of a convolution, or of a call whose operator PyTorch's counter knows; 0 for other
    operations, whose time is that of their bytes."""
    if isinstance(operation, (Conv, ConvGrads)):
        outputs = operation.grad.layout if isinstance(operation, ConvGrads) else operation.results[0].layout
        _, channels, height, width = operation.weight.layout.sizes
        directions = sum(operation.wanted) if isinstance(operation, ConvGrads) else 1
        return 2 * directions * outputs.numel * channels * height * width
    count = flops_of_operator(operation.operator) if isinstance(operation, Call) else None
    if count is None:
        return 0
    results = [_meta(View(result, result.layout)) for result in operation.results]
    args, kwargs = replaced(operation.args, _meta), replaced(operation.kwargs, _meta)
    return count(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results))


def flops_of_operator(operator) -> Callable | None:
    """PyTorch's counter of an operator's flops, called with its arguments, and its result as `out_val`; or None."""
    from torch.utils.flop_counter import flop_registry  # here, as it imports Triton where that is installed

    packet = getattr(operator, "overloadpacket", None)
    count = flop_registry.get(_COUNTED_AS.get(packet, packet))
    if count is None or not operator._schema.name.startswith("aten::_scaled_dot_product"):
        return count
    query = [argument.name for argument in operator._schema.arguments].index("query")
    return functools.partial(_of_repeated_heads, count, query)


def _of_repeated_heads(count: Callable, query: int, *args: Any, **kwargs: Any) -> int:
    """Flops of attention. In torch 2.11 its counters refuse keys and values that heads share, and get their sizes as if
    they were repeated; what is no tensor they take as sizes.

    Args:
        query: position among the arguments of the queries, before keys and values.
    """
    shapes = [tuple(each.shape) for each in args[query : query + 3]]
    repeated = [(shape[0], shapes[0][1], *shape[2:]) for shape in shapes]
    return count(*args[:query], *repeated, *args[query + 3 :], **kwargs)


def multiplied_type(operation: Operation) -> torch.dtype:
    """Data type of the factors of a convolution or product: that of the first floating-point operand, but for a sum to
    which a product is added."""
    is_sum = isinstance(operation, Call) and operation.operator is add_product
    types = [view.value.dtype for view in operation.operands[is_sum:]]
    return next((dtype for dtype in types if dtype.is_floating_point), torch.float32)


def _meta(view: View) -> Tensor:
    """The view as a tensor on the meta device."""
    return torch.empty_strided(view.layout.sizes, view.layout.strides, dtype=view.value.dtype, device="meta")
