"""Gradients of embeddings' tables: of a few rows as sums over what was looked up, which join what makes the gradient;
on GPUs of others by a kernel that fills and adds up in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.dtypes import SUMMED_IN_FP32

aten = torch.ops.aten

_FEW = 4  # rows: of more, each element would be compared with too many numbers


def _dense_backward(grad: Tensor, ids: Tensor, rows: int, padding: int, by_frequency: bool) -> Tensor:
    if grad.numel() == 0 or grad.dim() != ids.dim() + 1:
        return NotImplemented
    if rows <= _FEW and not by_frequency:
        flat, of_element = grad.reshape(-1, grad.shape[-1]), ids.reshape(-1, 1).to(torch.float32)
        zero = torch.zeros_like(flat[0])
        sums = [torch.where(of_element == r, flat, 0.0).sum(0) if r != padding else zero for r in range(rows)]
        return torch.stack(sums)
    if grad.device.type != "cuda" or grad.dtype not in SUMMED_IN_FP32:
        return NotImplemented
    return torch.ops.reformer._embedding_grad(grad, ids, rows, padding, by_frequency)


DECOMPOSITIONS = {aten.embedding_dense_backward.default: _dense_backward}
