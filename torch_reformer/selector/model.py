"""Γ-block, the selector built from it, and a transformer block to compare it with.

A transformer block has six matrix products (the fused projection to queries, keys and values, ``QK^T``, ``AV``, the
output, and two in the MLP) and a depth of four learnable layers. A Γ-block has three, none of them between positions,
and the same depth; docs/selector.md says which of the design choices are ours.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Linear layer that preserves the variance of its input; PyTorch's default reduces it to a third."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


class GammaBlock(nn.Module):
    """Residual block that mixes a sequence in linear time: ``[batch, length, width]`` to the same shape.

    1. ``q, k, v`` = a linear layer of the normalised sequence (matrix product 1).
    2. Every channel of ``v`` is averaged over the sequence with weights ``softmax(k)`` along it. Each position gets
       ``q`` times that average, plus a depthwise convolution of ``v`` (``TAPS`` positions). No matrix product.
    3. 4. A linear layer, ReLU, and a linear layer back (matrix products 2 and 3), added to the sequence.

    The average without matrix products follows "An Attention Free Transformer" (Zhai et al., arXiv 2105.14103).
    """

    TAPS = 3

    def __init__(self, width: int, hidden: int, dropout: float = 0.0):
        super().__init__()
        self.qkv = _linear(width, 3 * width)
        nn.init.ones_(self.qkv.bias[:width])  # q: initially every position receives the average unscaled
        self.taps = nn.Parameter(torch.tensor([0.0, 1.0, 0.0])[:, None].repeat(1, width))
        self.up = _linear(width, hidden)
        self.down = _linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, first: bool = False) -> Tensor:
        """Apply the block. ``mask`` ``[batch, length]`` is true for positions that exist. With ``first``, only the
        first position of the result is computed: ``[batch, 1, width]``."""
        q, k, v = self.qkv(F.layer_norm(x, x.shape[-1:])).chunk(3, -1)
        if mask is not None:
            k = k.masked_fill(~mask[..., None], float("-inf"))
            v = v * mask[..., None]
        average = (k.softmax(-2) * v).sum(-2, keepdim=True)
        before, itself, after = self.taps
        near = F.pad(v, (0, 0, 1, 1))
        mixed = torch.addcmul(q * average, itself, v)
        mixed = mixed.addcmul(before, near[..., :-2, :]).addcmul(after, near[..., 2:, :])
        if first:
            x, mixed = x[..., :1, :], mixed[..., :1, :]
        return x + self.dropout(self.down(F.relu(self.up(mixed))))


class Reformer(nn.Module):
    """Model that scores kernels for a convolution problem: logits of the probability that a kernel is the fastest.

    The problem is the sequence of csrc/selector/features.h. Every token is a weighted sum of rows of the embedding
    matrix. The first token also represents the device, and its state after the last block determines the logits.

    Args:
        rows: the number of rows of the embedding matrix.
        candidates: the number of kernels to choose from.
        devices: the number of devices that the model is trained for.
        token_dropout: the fraction of the embedded sequence's elements that is dropped in training.
    """

    def __init__(
        self,
        rows: int,
        candidates: int,
        width: int = 32,
        hidden: int = 128,
        blocks: int = 2,
        devices: int = 1,
        token_dropout: float = 0.0,
    ):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(rows, width) * 0.3)
        self.device = nn.Parameter(torch.zeros(devices, width))
        self.blocks = nn.ModuleList(GammaBlock(width, hidden) for _ in range(blocks))
        self.head = nn.Linear(width, candidates)
        self.dropout = nn.Dropout(token_dropout)

    def forward(self, rows: Tensor, weights: Tensor, device: Tensor | None = None) -> Tensor:
        """Logits ``[batch, candidates]`` of sequences given as ``rows`` and ``weights`` ``[batch, token, term]``.

        ``device`` ``[batch]`` is the device of each sequence (default: the first).
        """
        bags = rows.flatten(0, 1), self.embedding
        x = F.embedding_bag(*bags, mode="sum", per_sample_weights=weights.flatten(0, 1)).unflatten(0, rows.shape[:2])
        start = self.device[:1] if device is None else self.device[device]
        x = self.dropout(torch.cat([x[:, :1] + start[:, None], x[:, 1:]], 1))
        for block in self.blocks[:-1]:
            x = block(x)
        x = self.blocks[-1](x, first=True)[:, 0]
        return self.head(F.layer_norm(x, x.shape[-1:]))


class TransformerBlock(nn.Module):
    """Plain pre-norm transformer block: ``[batch, length, width]`` to the same shape.

    It has six matrix products: the fused projection, the two of attention (PyTorch's fused kernel), the output, and two
    in the MLP. Norm, initialisation and dropout are those of `GammaBlock`.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        heads: int,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = F.gelu,
    ):
        super().__init__()
        if width % heads:
            raise ValueError(f"heads={heads} does not divide width={width}: every head takes as many channels")
        self.heads, self.activation = heads, activation
        self.qkv = _linear(width, 3 * width)
        self.out = _linear(width, width)
        self.up = _linear(width, hidden)
        self.down = _linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block. ``mask`` ``[batch, length]`` is true for positions that exist."""
        qkv = self.qkv(F.layer_norm(x, x.shape[-1:])).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in qkv)
        if mask is not None:
            mask = mask[..., None, None, :]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(-2, -3).flatten(-2)
        x = x + self.dropout(self.out(attended))
        return x + self.dropout(self.down(self.activation(self.up(F.layer_norm(x, x.shape[-1:])))))
