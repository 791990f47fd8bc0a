"""Expected times of calls of attention's kernels, as a plan has them (attention_cost.py)."""

from __future__ import annotations

import torch

from ...runtime.dtypes import NARROW
from ...runtime.sizes import estimate
from .attention_cost import Attention, expected_us_of
from .device_model import GPUS
from .graph import Call, Operation, View

_KERNELS = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{suffix}").default: (kernel, bool(suffix))
    for kernel in ("cudnn", "flash", "efficient")
    for suffix in ("", "_backward")
}


def attention_us(operation: Operation, gpu: str) -> float | None:
    """Expected microseconds of a call on a GPU, a key of GPUS; None for other calls, and for kernels, types and GPUs
    without fitted times."""
    if not isinstance(operation, Call) or operation.operator not in _KERNELS or not GPUS[gpu].has_tma:
        return None
    kernel, is_backward = _KERNELS[operation.operator]
    arguments = operation.operator._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments}
    given |= dict(zip(given, operation.args, strict=False)) | operation.kwargs
    operands = [given[name] for name in ("query", "key", "value")]
    if any(each.value.dtype not in NARROW or len(each.layout.sizes) != 4 for each in operands):
        return None
    (batch, heads, queries, head_size), (_, of_keys, keys, _), (*_, of_values) = (
        tuple(map(estimate, each.layout.sizes)) for each in operands
    )
    mask, is_shared, bias = "causal" if given["is_causal"] else "none", True, given.get("attn_bias")
    if isinstance(bias, View):
        needs_grad = kernel == "efficient" and is_backward and given["grad_input_mask"][3]
        mask = "bias_grad" if needs_grad else "bias"
        is_shared = len(bias.layout.sizes) < 4 or bias.layout.sizes[0] == 1 or bias.layout.strides[0] == 0
    head_size = (head_size + of_values) // 2  # each takes one of the products
    has_dropout = bool(given["dropout_p"])
    case = Attention(batch, heads, heads // of_keys, queries, keys, head_size, mask, has_dropout, is_shared)
    return expected_us_of(case, kernel, GPUS[gpu], is_backward)
