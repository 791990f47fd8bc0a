"""Functions of rows whose results are copied in another order of rows, as windows of images are, for tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def windows(x: Tensor, size: int = 4) -> Tensor:
    n, h, w, c = x.shape
    return x.view(n, h // size, size, w // size, size, c).transpose(2, 3).reshape(-1, size * size, c)


def images(x: Tensor, like: Tensor, size: int = 4) -> Tensor:
    n, h, w, c = like.shape
    return x.view(n, h // size, w // size, size, size, c).transpose(2, 3).reshape(like.shape)


def rolled(x: Tensor, shift: int = -3) -> Tensor:
    return torch.roll(x, (shift, shift), (1, 2))


def padded(x: Tensor, value: float = 0.0) -> Tensor:
    """Images of a multiple of 4 rows and columns, with one more at the end."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % 4 + 4, 0, -x.shape[1] % 4), value=value)


def reflected(x: Tensor) -> Tensor:
    return F.pad(x.permute(0, 3, 1, 2), (1, 3, 2, 2), mode="reflect").permute(0, 2, 3, 1)


def with_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x.sum((0, 1))


# Of images [N, 8, 12, C]. One kernel computes the result of those in ONE_KERNEL, without gradients.
ONE_KERNEL = {
    "windows": lambda x: windows(norm(x)),
    "rolled": lambda x: windows(rolled(norm(x))),
    "rolled, of no reduction": lambda x: windows(rolled(torch.sin(x) * x)),
    "padded": lambda x: windows(rolled(padded(norm(x)))),
    "padded and cast": lambda x: windows(rolled(padded(norm(x)))).to(torch.bfloat16),
    "repeated": lambda x: windows(reflected(norm(x))).clone(),
    "cast and scaled": lambda x: windows(rolled(norm(x))).to(torch.bfloat16) * 0.5,
    "itself, too": lambda x: (norm(x), windows(rolled(norm(x)))),
    "two orders": lambda x: (windows(rolled(norm(x))), windows(rolled(norm(x), 2).flip(2))),
    "sums": lambda x: with_sums(windows(rolled(norm(x) * x))),
}
OTHERS = {
    "padded by ones": lambda x: windows(rolled(padded(norm(x), 1.0))),
    "padded and changed": lambda x: torch.exp(windows(rolled(padded(norm(x))))),
    "sums of padded": lambda x: with_sums(windows(rolled(padded(norm(x) * x)))),
    "and back": lambda x: x + norm(rolled(images(windows(rolled(norm(x))).cos(), x), 3)),
    "twice": lambda x: windows(rolled(windows(rolled(norm(x))).view(x.shape).sin())),
    "much more": lambda x: windows(padded(padded(padded(norm(x[:, :2, :2]))))),
}
