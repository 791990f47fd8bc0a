"""Attention written out: products of all queries with all keys, the softmax of rows, and products with all values.

Scores, and the gradients of the softmax's result, are in fp32, as the fused kernels have them; the softmax's result is
saved in 16 bits. A row that is masked everywhere gives zeros, and so does its gradient, as by PyTorch's kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

_ALIGNED = 8  # keys: products are slow if rows of scores do not begin at multiples of 16 bytes


def written_out(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: float | None
) -> Tensor:
    """Attention of 16-bit tensors [batch, heads, rows, columns]. The result has the heads within the rows of memory, as
    that of the fused kernels."""
    if is_causal:
        rows, columns = (torch.arange(each.shape[-2], device=query.device) for each in (query, key))
        mask = columns <= rows[:, None]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    result = _WrittenOut.apply(query, key, value, mask, dropout, scale)
    return result.transpose(1, 2).contiguous().transpose(1, 2)


class _WrittenOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, mask, dropout, scale):
        ctx.leading, ctx.keys, ctx.scale, ctx.dropout = query.shape[:2], key.shape[-2], scale, dropout
        ctx.mask = None if mask is None else (mask.shape, mask.dtype)
        query, key, value = query.flatten(0, 1), *(_aligned_rows(each.flatten(0, 1)) for each in (key, value))
        scores = _wide_product(query, key.mT)[..., : ctx.keys].unflatten(0, ctx.leading)
        weights = _softmax(scores * scale, mask).to(query.dtype)
        dropped, survives = aten.native_dropout(weights, dropout, True) if dropout else (weights, None)
        dropped = _aligned_columns(dropped.flatten(0, 1))
        # Without dropout the weights are a part of the aligned ones: one of the two tensors is kept.
        ctx.save_for_backward(query, key, value, weights if dropout else None, dropped, survives)
        return torch.bmm(dropped, value).unflatten(0, ctx.leading)

    @staticmethod
    def backward(ctx, grad):
        query, key, value, weights, dropped, survives = ctx.saved_tensors
        if weights is None:
            weights = dropped[..., : ctx.keys].unflatten(0, ctx.leading)
        grad = grad.flatten(0, 1)
        of_weights = _wide_product(grad, value.mT)[..., : ctx.keys].unflatten(0, ctx.leading)
        if survives is not None:
            of_weights = of_weights * survives * (0.0 if ctx.dropout == 1 else 1 / (1 - ctx.dropout))
        wide = weights.float()
        of_scores = wide * (of_weights - (wide * of_weights).sum(-1, keepdim=True))
        narrow = _aligned_columns((of_scores * ctx.scale).to(query.dtype).flatten(0, 1))
        grads = [torch.bmm(narrow, key), *(torch.bmm(narrow.mT, query), torch.bmm(dropped.mT, grad))]
        grads = [grads[0], *(each[:, : ctx.keys] for each in grads[1:])]
        of_mask = None
        if ctx.needs_input_grad[3]:
            shape, dtype = ctx.mask
            of_mask = of_scores.sum_to_size(shape).to(dtype)
        return *(each.unflatten(0, ctx.leading) for each in grads), of_mask, None, None


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.softmax(-1)
    masked = torch.where(mask, scores, -torch.inf) if mask.dtype == torch.bool else scores + mask
    most = masked.amax(-1, keepdim=True)
    powers = (masked - torch.where(most == -torch.inf, 0, most)).exp()
    sums = powers.sum(-1, keepdim=True)
    return powers / torch.where(sums == 0, 1, sums)


def _wide_product(one: Tensor, other: Tensor) -> Tensor:
    """The product in fp32 of 16-bit matrices."""
    if one.device.type == "cuda":
        return aten.bmm.dtype(one, other, torch.float32)
    return torch.bmm(one.float(), other.float())


def _aligned_rows(matrices: Tensor) -> Tensor:
    """The matrices with rows of zeros behind, so that transposed they have aligned rows."""
    missing = -matrices.shape[-2] % _ALIGNED
    return F.pad(matrices, (0, 0, 0, missing)) if missing else matrices


def _aligned_columns(matrices: Tensor) -> Tensor:
    missing = -matrices.shape[-1] % _ALIGNED
    return F.pad(matrices, (0, missing)) if missing else matrices
