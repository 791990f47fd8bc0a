"""Gradients of embedding tables, and bags of embeddings. The gradient of a table with a few rows is computed by sums
over the looked-up elements, which fuse with the operations that compute their gradient. On GPUs that of other tables is
computed by a kernel that fills it and adds to it in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import SUMMED_IN_FP32

aten = torch.ops.aten

_FEW = 4  # rows: with more, each element would be compared with too many numbers
_SUM = 0  # ATen's number for embedding_bag's mode "sum"


def _dense_backward(grad: Tensor, ids: Tensor, rows: int, padding: int, by_frequency: bool) -> Tensor:
    if grad.numel() == 0 or grad.dim() != ids.dim() + 1:
        return NotImplemented
    if rows <= _FEW and not by_frequency:
        flat, column_of_ids = grad.reshape(-1, grad.shape[-1]), ids.reshape(-1, 1).to(torch.float32)
        zero = torch.zeros_like(flat[0])
        sums = [torch.where(column_of_ids == r, flat, 0.0).sum(0) if r != padding else zero for r in range(rows)]
        return torch.stack(sums)
    if grad.device.type != "cuda" or grad.dtype not in SUMMED_IN_FP32:
        return NotImplemented
    return torch.ops.reformer._embedding_grad(grad, ids, rows, padding, by_frequency)


def _bag(table, ids, offsets, by_frequency=False, mode=0, sparse=False, weights=None, ends=False, padding=-1):
    """Sums of bags in bf16 on CPUs. PyTorch's kernel does not return the bag of each index there, but its fake tensors
    have one, and so do gradients traced with them. It is computed here."""
    if mode != _SUM or table.dtype != torch.bfloat16 or table.device.type != "cpu" or padding >= 0:
        return NotImplemented
    options = by_frequency, mode, sparse, weights, ends, padding
    sums = aten._embedding_bag_forward_only(table, ids, offsets, *options)[0]
    places = torch.arange(ids.shape[0], dtype=offsets.dtype, device=offsets.device)
    starts = offsets[:-1] if ends else offsets
    bags = torch.bucketize(places, starts, right=True).to(offsets.dtype) - 1
    sizes = torch.diff(starts, append=offsets.new_full((1,), ids.shape[0]))
    return sums, bags, sizes, torch.zeros_like(sizes)


DECOMPOSITIONS = {
    aten.embedding_dense_backward.default: _dense_backward,
    aten._embedding_bag.default: _bag,
}
