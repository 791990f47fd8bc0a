"""Weight norm (Salimans and Kingma, Weight Normalization, 2016), w = g v / |v|, and its gradient. PyTorch decomposes
only the forward, and takes the length of all of a vector v for those of its elements."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import NARROW

aten = torch.ops.aten


def _sum(values: Tensor, dim: int) -> Tensor:
    """Sums over all dimensions but one, which are kept."""
    over = [d for d in range(values.dim()) if d != dim % values.dim()]
    return values.sum(over, keepdim=True) if over else values


def _forward(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """The weight, and the lengths of the slices of v along `dim`: fp32 for 16 bits."""
    wide = v.to(torch.float32) if v.dtype in NARROW else v
    norms = _sum(wide * wide, dim).sqrt()
    return (wide * (g / norms)).to(v.dtype), norms


def _backward(grad_w: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of v and g."""
    wide_grad, wide_v, wide_g = (each.to(norms.dtype) for each in (grad_w, v, g))
    grad_g = _sum(wide_grad * wide_v, dim) / norms
    grad_v = wide_g / norms * (wide_grad - wide_v * (grad_g / norms))
    return grad_v.to(v.dtype), grad_g.to(g.dtype)


DECOMPOSITIONS = {
    aten._weight_norm_interface.default: _forward,
    aten._weight_norm_interface_backward.default: _backward,
}
