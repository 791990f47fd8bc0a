"""Expected times of calls of attention's kernels, as a plan has them (attention_cost.py)."""

from __future__ import annotations

import torch

from ...runtime.dtypes import NARROW
from ...runtime.sizes import estimate
from .attention_cost import Attention, expected_us_of
from .device_model import GPUS
from .graph import Call, Operation, View

KERNELS = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{suffix}").default: (kernel, bool(suffix))
    for kernel in ("cudnn", "flash", "efficient")
    for suffix in ("", "_backward")
}


def attention_us(operation: Operation, gpu: str) -> float | None:
    """Expected microseconds of a call on a GPU, a key of GPUS; None for other calls, and for kernels, types and GPUs
    without fitted times."""
    if not isinstance(operation, Call) or operation.operator not in KERNELS or not GPUS[gpu].has_tma:
        return None
    kernel, is_backward = KERNELS[operation.operator]
    arguments = operation.operator._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments}
    given |= dict(zip(given, operation.args, strict=False)) | operation.kwargs
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if any(each.value.dtype not in NARROW or len(each.layout.sizes) != 4 for each in (query, key, value)):
        return None
    batch, heads, queries, head_size = map(estimate, query.layout.sizes)
    of_keys, keys, of_values = (
        estimate(size) for size in (key.layout.sizes[1], key.layout.sizes[2], value.layout.sizes[3])
    )
    if not (batch and heads and queries and head_size and of_keys and keys):
        return None
    mask, is_shared = "causal" if given["is_causal"] else "none", True
    bias = given.get("attn_bias")
    if isinstance(bias, View):  # kernels take no boolean masks: these are biases by now
        needs_grad = kernel == "efficient" and is_backward and given["grad_input_mask"][3]
        mask = "bias_grad" if needs_grad else "bias"
        is_shared = len(bias.layout.sizes) < 4 or bias.layout.sizes[0] == 1 or bias.layout.strides[0] == 0
    head_size = (head_size + of_values) // 2  # each takes one of the products
    has_dropout = bool(given["dropout_p"])
    case = Attention(batch, heads, heads // of_keys, queries, keys, head_size, mask, has_dropout, is_shared)
    return expected_us_of(case, kernel, GPUS[gpu], is_backward)
