"""Choose attention's kernel: cuDNN's, flash, memory-efficient, or attention written out, by expected times
(ir/attention_cost.py). Nothing is timed. PyTorch chooses where a kernel is disabled (torch.nn.attention.sdpa_kernel),
where algorithms have to be deterministic, for sizes that are symbols, and on GPUs whose times are not known."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...runtime.dtypes import NARROW
from ..ir.attention_choice import IS_ENABLED, is_free, timed_gpu
from ..ir.attention_cost import WRITTEN, Attention, kernels
from .written_attention import written_out

aten = torch.ops.aten

KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def attention(
    operator: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention by the kernel that is expected to take the least time.

    Args:
        operator: PyTorch's own, which chooses among the enabled kernels.
    """
    case = _case(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    options = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    calls = [functools.partial(operator, query, key, value, **options, enable_gqa=enable_gqa)]
    if enable_gqa and query.device.type == "cuda" and query.dim() == 4:
        calls.append(functools.partial(_with_repeated, operator, query, key, value, **options))
    gpu = timed_gpu(query.device) if case is not None else None
    if case is None or gpu is None or not is_free():
        return _by_pytorch(calls)
    needs_grad = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    for kernel in kernels(case, gpu, needs_grad):
        if kernel == WRITTEN:
            return written_out(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if (result := _by_kernels([KERNELS[kernel]], calls)) is not None:
            return result
    return _by_pytorch(calls)


def _by_pytorch(calls: list[Callable[[], Tensor]]) -> Tensor:
    """The first call, by the kernel that PyTorch chooses. If there are several, the first one that a fused kernel
    supports: PyTorch's last resort, full matrices of scores, costs more than repeated keys and values."""
    fused = [kernel for kernel, is_enabled in IS_ENABLED.items() if is_enabled()]
    result = _by_kernels(fused, calls) if len(calls) > 1 and fused else None
    return calls[0]() if result is None else result


def _by_kernels(kernels: list[SDPBackend], calls: list[Callable[[], Tensor]]) -> Tensor | None:
    """The first of the calls that one of these kernels supports; None if they support none."""
    with sdpa_kernel(kernels), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each says why it does not support the call
        for call in calls:
            try:
                return call()
            except RuntimeError:
                continue
    return None


def _with_repeated(operator: Callable[..., Tensor], query: Tensor, *shared: Tensor, **options) -> Tensor:
    """The call with keys and values that are repeated for all heads of queries."""
    repeated = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in shared)
    return operator(query, *repeated, **options)


def _case(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, enable_gqa: bool
) -> Attention | None:
    """The call; None if it is not of four dimensions and 16 bits, if sizes are symbols, or if it is empty."""
    operands = [each for each in (query, key, value, mask) if each is not None]
    if any(not isinstance(size, int) for each in operands for size in each.shape) or query.dtype not in NARROW:
        return None
    if any(each.dim() != 4 or each.dtype != query.dtype for each in (query, key, value)):
        return None
    batch, heads, queries, head_size = query.shape
    groups = heads // key.shape[1] if enable_gqa and key.shape[1] else 1
    if key.shape[1] * groups != heads or key.shape[0] != batch or key.shape[-1] != head_size:
        return None
    if value.shape[:-1] != key.shape[:-1] or not math.prod((*query.shape, *key.shape, *value.shape)):
        return None
    head_size = (head_size + value.shape[-1]) // 2  # each takes one of the products
    kind = "causal" if is_causal else "none"
    if mask is not None:
        kind = "mask" if mask.dtype == torch.bool else "bias_grad" if mask.requires_grad else "bias"
        if is_causal or mask.dim() > 4:
            return None
    is_shared = mask is None or mask.dim() < 4 or mask.shape[0] == 1 or mask.stride(0) == 0
    return Attention(batch, heads, groups, queries, key.shape[2], head_size, kind, bool(dropout), is_shared)
