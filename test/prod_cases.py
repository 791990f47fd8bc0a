"""Functions with products over dimensions that programs compute, and those that stay calls of PyTorch's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INF, NAN = math.inf, math.nan


def near_one(*sizes: int) -> Tensor:
    return 1 + 0.1 * torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def signs(*sizes: int) -> Tensor:
    """Factors of which some are 2 or 1/2, so that products are exact, also in bf16, in which PyTorch multiplies."""
    values = torch.randint(0, 2, sizes, generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    values[3::50] *= 2
    values[5::50] /= 2
    return values


def with_special_values() -> Tensor:
    """Rows and columns with NaN, infinities, zeros and their products."""
    x = torch.ones(8, 40)
    x[0, 7], x[1, 20], x[2, 0], x[2, 39] = NAN, INF, -INF, 2
    x[3, 3], x[3, 30], x[4, 11], x[5, 0], x[6, 1] = INF, 0, -0.0, -1, 0
    return x


# Each function with its arguments.
PROGRAMS = {
    "rows": (lambda x: x.prod(1), near_one(8, 40)),
    "rows kept": (lambda x: x / x.prod(-1, keepdim=True), near_one(8, 40)),
    "columns": (lambda x: (x * 2).prod(0) - 1, near_one(8, 40)),
    "everything": (lambda x: (x * x).prod(), near_one(8, 40)),
    "long rows": (lambda x: x.prod(1), near_one(3, 5000) * 0.01 + 0.99),
    "many rows": (lambda x: x.prod(0), signs(5000, 24)),
    "middle": (lambda x: x.prod(1), near_one(6, 5, 40)),
    "few": (lambda x: x.prod(2) * 2, near_one(6, 5, 2)),
    "channels": (lambda x: x.prod(1), near_one(2, 64, 8, 8).to(memory_format=torch.channels_last)),
    "planes": (lambda x: x.flatten(2).prod(2), near_one(2, 3, 32, 32)),
    "transposed": (lambda x: x.t().prod(1), near_one(8, 40)),
    "with sums": (lambda x: (x.prod(1), x.sum(1), x.amax(1)), near_one(8, 40)),
    "of special values": (lambda x: (x.prod(1), x.prod(0), x.prod()), with_special_values()),
    "of truths": (lambda x: x * (x > 0).prod(1, keepdim=True), near_one(8, 40)),
    "truths as floats": (lambda x: (x > 1).prod(1, dtype=torch.float32), near_one(8, 2)),
    "a number": (lambda x: (x * 2).prod() + 1, torch.tensor(3.0)),
}
CALLS = {
    "nothing": (lambda x: (x.prod(1), x.prod()), torch.empty(3, 0)),
    "integers": (lambda i: i.prod(1), torch.arange(1, 13).view(3, 4)),
    "large products of small integers": (lambda i: i.clamp(-2, 2).prod(1), torch.arange(-60, 60).view(3, 40)),
    "rounded before": (lambda x: x.prod(1, dtype=torch.bfloat16), near_one(8, 40)),
    "in fp64": (lambda x: x.prod(1, dtype=torch.float64), near_one(8, 40)),
}
