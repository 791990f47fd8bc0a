"""The Γ-block, the selector that is a stack of them, and the transformer that they are measured against.

A transformer block does six matrix products (the fused projection to queries, keys and values, ``QK^T``, ``AV``, the
output, and two of the MLP), with four learnable layers in depth. A Γ-block does three, none of them between positions,
with the same four learnable layers in depth; see docs/selector.md for which choices are ours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GammaBlock(nn.Module):
    """A residual block that mixes a sequence in linear time: ``[batch, length, width]`` to the same.

    1. ``q, k, v`` = a linear layer of the normalised sequence (matrix product 1).
    2. Every channel of ``v`` is averaged over the sequence with weights ``softmax(k)`` along it, and each position
       takes ``q`` times that average, plus ``v`` of itself and its neighbours times learnable taps. No matrix product.
    3. 4. A linear layer, GELU, and a linear layer back (matrix products 2 and 3), added to the sequence.

    The average without matrix products follows "An Attention Free Transformer" (Zhai et al., arXiv 2105.14103).
    """

    TAPS = 3

    def __init__(self, width: int, hidden: int, dropout: float = 0.0):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.taps = nn.Parameter(torch.tensor([0.0, 1.0, 0.0])[:, None].repeat(1, width))
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask`` is true for positions ``[batch, length]`` that exist."""
        q, k, v = self.qkv(F.layer_norm(x, x.shape[-1:])).chunk(3, -1)
        if mask is not None:
            k = k.masked_fill(~mask[..., None], float("-inf"))
            v = v * mask[..., None]
        average = (k.softmax(-2) * v).sum(-2, keepdim=True)
        before, itself, after = self.taps
        mixed = q * average + itself * v
        near = F.pad(v, (0, 0, 1, 1))
        mixed = mixed + before * near[..., :-2, :] + after * near[..., 2:, :]
        return x + self.dropout(self.down(F.gelu(self.up(mixed), approximate="tanh")))
