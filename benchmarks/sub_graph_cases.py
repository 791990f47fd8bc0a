"""Functions of tensors between two products or convolutions of models, whose operators move elements by an index: the
cases of sub_graphs.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Case(NamedTuple):
    """A function and its inputs; those that require gradients get them."""

    function: Callable[..., Tensor | tuple[Tensor, ...]]
    inputs: tuple[Tensor, ...]

    @property
    def least_bytes(self) -> int:
        """Bytes of forward and backward, if each input, result and gradient is read or written once."""
        with torch.device("meta"):
            results = self.function(*(each.detach().to("meta") for each in self.inputs))
        moved = [*self.inputs, *_tuple(results)]
        moved += [*_tuple(results), *(each for each in self.inputs if each.requires_grad)]
        return sum(each.numel() * each.element_size() for each in moved)


def _tuple(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


class Inputs:
    """Random tensors on a device. Batches are divided by `smaller`."""

    def __init__(self, device: torch.device, smaller: int = 1):
        self.device, self.smaller = device, smaller

    def _batch(self, count: int) -> int:
        return max(count // self.smaller, 1)

    def images(self, count: int, *sizes: int) -> Tensor:
        """Images in bf16 and channels_last."""
        found = self.rows(count, *sizes).detach()
        return found.to(memory_format=torch.channels_last).requires_grad_()

    def rows(self, count: int, *sizes: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """A batch in row-major order."""
        return torch.randn(self._batch(count), *sizes, device=self.device, dtype=dtype).requires_grad_()

    def parameter(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*sizes, device=self.device, dtype=dtype).requires_grad_()

    def constant(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, device=self.device, dtype=torch.bfloat16)

    def numbers(self, below: int, *sizes: int) -> Tensor:
        return torch.randint(below, sizes, device=self.device)

    def labels(self, below: int, count: int, *sizes: int) -> Tensor:
        return self.numbers(below, self._batch(count), *sizes)

    def kept(self, count: int, total: int, kept: int) -> Tensor:
        """For each element of a batch some of `total` numbers, without repetition."""
        chosen = [torch.randperm(total, device=self.device)[:kept] for _ in range(self._batch(count))]
        return torch.stack(chosen)


def _upsampled(mode: str, **size) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, mode=mode, **size)


def _windows(x: Tensor) -> Tensor:
    """Norm, cyclic shift and partition into windows of 7x7, as in Swin."""
    x = F.layer_norm(x, x.shape[-1:])
    x = torch.roll(F.pad(x, (0, 0, 0, -x.shape[2] % 7, 0, -x.shape[1] % 7)), (-3, -3), (1, 2))
    n, h, w, c = x.shape
    return x.view(n, h // 7, 7, w // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)


def _image_of_windows(x: Tensor, residual: Tensor) -> Tensor:
    n, h, w, c = residual.shape
    x = x.view(n, h // 7, w // 7, 7, 7, c).transpose(2, 3).reshape(n, h, w, c)
    return residual + torch.roll(x, (3, 3), (1, 2))


def _dual_path(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:, :512] + y[:, :512], x[:, 512:], y[:, 512:]], 1)


def _heads(x: Tensor) -> tuple[Tensor, ...]:
    parts = x.view(*x.shape[:2], 3, 12, 64).permute(2, 0, 3, 1, 4)
    return tuple(each * 1.5 for each in parts.unbind(0))


def _rotated_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _rotated_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    token, x = x[:, :, :1], x[:, :, 1:]
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return torch.cat([token, x * cos + turned * sin], 2)


def _biased_softmax(scores: Tensor, table: Tensor, index: Tensor) -> Tensor:
    side = scores.shape[-1]
    return torch.softmax(scores + table[index].view(side, side, -1).permute(2, 0, 1), -1)


def _radix_softmax(x: Tensor, scores: Tensor) -> Tensor:
    n, c, h, w = x.shape
    gate = torch.softmax(scores.view(n, 1, 2, c // 2).transpose(1, 2), 1).reshape(n, c, 1, 1)
    return (x * gate).view(n, 2, c // 2, h, w).sum(1)


def _standardised(weight: Tensor, gain: Tensor) -> Tensor:
    variance, mean = torch.var_mean(weight, (1, 2, 3), keepdim=True)
    scale = torch.rsqrt(variance * math.prod(weight.shape[1:]) + 1e-4) * gain
    return ((weight - mean) * scale).to(torch.bfloat16)


def cases(make: Inputs) -> dict[str, Callable[[], Case]]:
    """Cases by name; sizes are those of the models named in brackets."""

    def case(function: Callable, *makers: Callable[[], Tensor]) -> Callable[[], Case]:
        return lambda: Case(function, tuple(each() for each in makers))

    def images(*sizes: int) -> Callable[[], Tensor]:
        return lambda: make.images(*sizes)

    def rows(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> Callable[[], Tensor]:
        return lambda: make.rows(*sizes, dtype=dtype)

    def parameter(*sizes: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
        return lambda: make.parameter(*sizes, dtype=dtype)

    def of_channels(count: int) -> Callable[[], Tensor]:
        return parameter(count, 1, 1, dtype=torch.bfloat16)

    def constant(*sizes: int) -> Callable[[], Tensor]:
        return lambda: make.constant(*sizes)

    def numbers(below: int, *sizes: int) -> Callable[[], Tensor]:
        return lambda: make.numbers(below, *sizes)

    fp32 = torch.float32
    return {
        "bilinear x8, 21 classes": case(_upsampled("bilinear", scale_factor=8), images(16, 21, 64, 64)),
        "bilinear x4, 19 classes, NCHW": case(_upsampled("bilinear", scale_factor=4), rows(16, 19, 128, 128)),
        "bilinear x2 + lateral + relu (FPN)": case(
            lambda x, y: torch.relu(F.interpolate(x, scale_factor=2, mode="bilinear") + y),
            images(16, 256, 64, 64),
            images(16, 256, 128, 128),
        ),
        "bilinear x2, aligned corners": case(
            _upsampled("bilinear", scale_factor=2, align_corners=True), images(16, 256, 32, 32)
        ),
        "bilinear 1 -> 64 + cat (ASPP)": case(
            lambda x, y: torch.cat([y, F.interpolate(x, size=64, mode="bilinear")], 1),
            images(16, 256, 1, 1),
            images(16, 256, 64, 64),
        ),
        "nearest x2 + cat + SiLU (U-Net)": case(
            lambda x, y: F.silu(torch.cat([F.interpolate(x, scale_factor=2), y], 1)),
            images(16, 256, 32, 32),
            images(16, 128, 64, 64),
        ),
        "bicubic 16 -> 24 (positions)": case(_upsampled("bicubic", size=24), parameter(1, 768, 16, 16)),
        "avg_pool 2 s2": case(lambda x: F.avg_pool2d(x, 2), images(64, 256, 56, 56)),
        "avg_pool 2 s2 of relu(bn) + residual": case(
            lambda x, weight, y: F.avg_pool2d(torch.relu(x * weight), 2) + y,
            images(64, 256, 56, 56),
            of_channels(256),
            images(64, 256, 28, 28),
        ),
        "avg_pool 3 s2 p1 (ResNeSt)": case(lambda x: F.avg_pool2d(x, 3, 2, 1), images(64, 128, 56, 56)),
        "avg_pool 3 s1 p1 - x (PoolFormer)": case(
            lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x, images(64, 64, 56, 56)
        ),
        "adaptive_avg_pool 6 (PSP)": case(lambda x: F.adaptive_avg_pool2d(x, 6), images(16, 2048, 64, 64)),
        "reflection pad 3": case(lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), images(16, 64, 128, 128)),
        "norm + roll + windows (Swin)": case(_windows, rows(64, 56, 56, 96, dtype=fp32)),
        "norm + pad + roll + windows (Swin at 256)": case(_windows, rows(64, 64, 64, 96, dtype=fp32)),
        "windows back + roll + residual (Swin)": case(
            _image_of_windows, rows(4096, 49, 96), rows(64, 56, 56, 96, dtype=fp32)
        ),
        "cat of 4 + batch norm + relu (Inception)": case(
            lambda *parts: torch.relu(F.batch_norm(torch.cat(parts, 1), None, None, training=True)),
            *(images(64, count, 35, 35) for count in (64, 96, 128, 96)),
        ),
        "split in 4 + silu + cat (Res2Net)": case(
            lambda x: torch.cat([F.silu(part) for part in x.chunk(4, 1)], 1), images(64, 208, 28, 28)
        ),
        "dual path: cat, slices, sum (DPN)": case(_dual_path, images(64, 576, 14, 14), images(64, 576, 14, 14)),
        "channel shuffle": case(lambda x: F.channel_shuffle(x, 2), images(128, 244, 28, 28)),
        "pixel shuffle x2 + bias": case(
            lambda x, bias: F.pixel_shuffle(x + bias, 2), images(16, 256, 64, 64), of_channels(256)
        ),
        "q, k, v of one product, heads outside": case(_heads, rows(128, 197, 2304)),
        "rotary, halves": case(_rotated_halves, rows(4, 40, 2048, 64), constant(2048, 64), constant(2048, 64)),
        "rotary, pairs, class token (EVA)": case(
            _rotated_pairs, rows(64, 12, 257, 64), constant(256, 64), constant(256, 64)
        ),
        "relative positions + softmax (Swin)": case(
            _biased_softmax, rows(1024, 12, 49, 49), parameter(169, 12), numbers(169, 2401)
        ),
        "relative buckets + softmax (T5)": case(
            _biased_softmax, rows(16, 8, 512, 512), parameter(32, 8), numbers(32, 512, 512)
        ),
        "embedding 50257 x 768 + norm": case(
            lambda index, table: F.layer_norm(F.embedding(index, table), (768,)),
            lambda: make.labels(50257, 8, 1024),
            parameter(50257, 768),
        ),
        "gather of kept tokens (MAE)": case(
            lambda x, index: x.gather(1, index[..., None].expand(-1, -1, x.shape[2])),
            rows(64, 196, 768),
            lambda: make.kept(64, 196, 49),
        ),
        "unfold 3x3 (VOLO)": case(lambda x: F.unfold(x, 3, padding=1, stride=2), images(32, 192, 28, 28)),
        "fold 3x3 (VOLO)": case(lambda x: F.fold(x, 28, 3, padding=1, stride=2), rows(32, 1728, 196)),
        "radix softmax, sum over the middle (ResNeSt)": case(
            _radix_softmax, images(64, 256, 28, 28), images(64, 256, 1, 1)
        ),
        "weight standardisation, 512x128x3x3 (NFNet)": case(
            _standardised,
            lambda: parameter(512, 128, 3, 3)().detach().to(memory_format=torch.channels_last).requires_grad_(),
            parameter(512, 1, 1, 1),
        ),
        "group norm 32 + SiLU": case(lambda x: F.silu(F.group_norm(x, 32)), images(16, 256, 64, 64)),
        "class of a pixel (segmentation loss)": case(
            lambda scores, classes: F.cross_entropy(scores.float(), classes),
            images(16, 21, 512, 512),
            lambda: make.labels(21, 16, 512, 512),
        ),
    }
