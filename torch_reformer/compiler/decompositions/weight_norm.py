"""The gradient of weight norm (Salimans and Kingma, Weight Normalization, 2016), w = g v / |v|. PyTorch decomposes only
the forward."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def _backward(grad_w: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of v and g. norms: of the slices of v along `dim`, with its other dimensions kept; fp32 for 16 bits."""
    over = [d for d in range(v.dim()) if d != dim % v.dim()]
    wide_grad, wide_v, wide_g = (each.to(norms.dtype) for each in (grad_w, v, g))
    grad_g = (wide_grad * wide_v).sum(over, keepdim=True) / norms
    grad_v = wide_g / norms * (wide_grad - wide_v * (grad_g / norms))
    return grad_v.to(v.dtype), grad_g.to(g.dtype)


DECOMPOSITIONS = {aten._weight_norm_interface_backward.default: _backward}
