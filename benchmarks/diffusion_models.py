"""Models that predict an image's noise (Ho et al., Denoising diffusion probabilistic models, NeurIPS 2020)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TransformerBlock(nn.Module):
    """A transformer's block whose norms and residuals are scaled and shifted by a condition."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.condition(condition)[:, None].chunk(6, -1)
        count, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x) * (1 + scale) + shift).view(count, length, 3, self.heads, -1).unbind(2)
        found = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)))
        x = x + gate * self.out(found.transpose(1, 2).reshape(count, length, width))
        return x + gate2 * self.mlp(self.norms[1](x) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):
    """DiT-B/2 (Peebles and Xie, Scalable diffusion models with transformers, ICCV 2023) of square latents."""

    CHANNELS, PATCH = 4, 2

    def __init__(self, size: int, width: int = 768, depth: int = 12, heads: int = 12):
        super().__init__()
        self.side = size // self.PATCH
        self.patches = nn.Conv2d(self.CHANNELS, width, self.PATCH, self.PATCH)
        self.places = nn.Parameter(torch.randn(1, self.side**2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.last = nn.Linear(width, self.PATCH**2 * self.CHANNELS)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(128, device=x.device) / 128)
        angles = times[:, None].float() * rates
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        x = self.last(self.norm(x)).view(-1, self.side, self.side, self.PATCH, self.PATCH, self.CHANNELS)
        return x.permute(0, 5, 1, 3, 2, 4).reshape(-1, self.CHANNELS, self.PATCH * self.side, self.PATCH * self.side)


class ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, of_time: int):
        super().__init__()
        self.norm, self.norm2 = nn.GroupNorm(32, before), nn.GroupNorm(32, after)
        self.conv, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(of_time, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv(F.silu(self.norm(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


class PixelAttention(nn.Module):
    HEAD = 64

    def __init__(self, channels: int):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(32, channels), nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm(x)).view(len(x), 3, -1, self.HEAD, x.shape[2] * x.shape[3])
        found = F.scaled_dot_product_attention(*heads.transpose(-1, -2).unbind(1))
        return x + self.out(found.transpose(-1, -2).reshape(x.shape))


class UNet(nn.Module):
    """U-Net with group norms, and attention at the lowest resolution."""

    CHANNELS, OF_TIME = (128, 256, 384, 512), 512

    def __init__(self):
        super().__init__()
        widths, last = self.CHANNELS, len(self.CHANNELS) - 1
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(1, self.OF_TIME), nn.SiLU(), nn.Linear(self.OF_TIME, self.OF_TIME))

        def pair(before: int, after: int) -> nn.ModuleList:
            return nn.ModuleList(ResidualBlock(each, after, self.OF_TIME) for each in (before, after))

        self.down = nn.ModuleList(map(pair, (widths[0], *widths), widths))
        self.halve = nn.ModuleList(nn.Conv2d(each, each, 3, 2, 1) for each in widths[:last])
        self.middle, self.attention = pair(widths[last], widths[last]), PixelAttention(widths[last])
        inner = (widths[last], *widths[::-1])
        self.up = nn.ModuleList(pair(below + each, each) for below, each in zip(inner, widths[::-1], strict=False))
        self.widen = nn.ModuleList(nn.Conv2d(each, each, 3, padding=1) for each in widths[:0:-1])
        self.norm, self.last = nn.GroupNorm(32, widths[0]), nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        time, x, kept = self.time(times[:, None].float() / 1000), self.first(x), []
        for i, blocks in enumerate(self.down):
            for block in blocks:
                x = block(x, time)
            kept.append(x)
            x = self.halve[i](x) if i < len(self.halve) else x
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        for i, blocks in enumerate(self.up):
            x = torch.cat([x, kept.pop()], 1)
            for block in blocks:
                x = block(x, time)
            if i < len(self.widen):
                x = self.widen[i](F.interpolate(x, scale_factor=2))
        return self.last(F.silu(self.norm(x)))
