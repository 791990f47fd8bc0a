"""Functions with running sums and products that programs compute, and with those that stay calls of PyTorch's."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def numbers(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def near_one(x: Tensor) -> Tensor:
    return 1 + 0.05 * torch.tanh(x)


INF, NAN = math.inf, math.nan
SPECIAL = torch.ones(6, 40)
SPECIAL[0, 7], SPECIAL[1, 20], SPECIAL[2, 0], SPECIAL[2, 39] = NAN, INF, -INF, INF
SPECIAL[3, 3], SPECIAL[3, 30], SPECIAL[4, 11], SPECIAL[5] = INF, NAN, 0.0, -0.0

# Each function with its arguments.
PROGRAMS = {
    "rows": (lambda x: x.cumsum(1), numbers(6, 40)),
    "last dimension": (lambda x: x.cumsum(-1) * 2, numbers(3, 5, 33)),
    "between operations": (lambda x, y: (x.exp() * y).cumsum(-1).tanh() + x, numbers(6, 40), numbers(6, 40)),
    "of a softmax": (lambda x: x.softmax(-1).cumsum(-1), numbers(6, 40)),
    "before a softmax": (lambda x: x.cumsum(-1).softmax(-1), numbers(6, 40)),
    "twice": (lambda x: x.cumsum(-1).cumsum(-1) / 100, numbers(6, 40)),
    "with its total": (lambda x: (y := x.exp()).cumsum(-1) / y.sum(-1, keepdim=True), numbers(6, 40)),
    "with column sums": (lambda x: ((y := x.cumsum(-1)), y.sum(0)), numbers(6, 40)),
    "of repeated numbers": (lambda x, y: (x * y).cumsum(-1), numbers(6, 40), numbers(40)),
    "of numbers of rows": (lambda x, y: (x + y).cumsum(-1), numbers(6, 1), numbers(6, 40)),
    "long rows": (lambda x: x.cumsum(-1) / 60, numbers(3, 4096)),
    "short rows": (lambda x: x.cumsum(-1), numbers(100, 2)),
    "of truths": (lambda x: x * (x > 0).cumsum(-1), numbers(6, 40)),
    "of truths as floats": (lambda x: x * (x > 0).cumsum(-1, dtype=x.dtype), numbers(6, 40)),
    "products of truths": (lambda x: x * (x > -1).cumprod(-1), numbers(6, 40)),
    "of small numbers": (lambda x: ((x > 0).long() * 3 - 1).cumsum(1) * x, numbers(6, 40)),
    "averages so far": (
        lambda x: x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1, device=x.device),
        numbers(6, 40),
    ),
    "discounted": (lambda x: (x * (y := near_one(x).detach())).cumsum(-1) / y, numbers(6, 40)),
    "products": (lambda x: near_one(x.detach()).cumprod(-1), numbers(6, 40)),
    "from the end": (lambda x: x.detach().exp().flip(-1).cumsum(-1).flip(-1) / 8, numbers(6, 40)),
    "products from the end": (lambda x: near_one(x.detach()).flip(-1).cumprod(-1).flip(-1), numbers(6, 40)),
}
CALLS = {
    "columns": (lambda x: x.detach().cumsum(0), numbers(6, 40)),
    "middle": (lambda x: x.detach().cumsum(1), numbers(3, 5, 33)),
    "one row": (lambda x: x.detach().cumsum(0), numbers(40)),
    "a row of many": (lambda x: x.detach()[:1].cumsum(1), numbers(6, 40)),
    "a number": (lambda x: x.detach().cumsum(0), torch.tensor(2.0)),
    "nothing": (lambda x: x.detach().cumsum(1), torch.empty(3, 0)),
    "one element": (lambda x: x.detach().cumsum(1) + x.detach().cumprod(-1), numbers(6, 1)),
    "transposed": (lambda x: x.detach().t().cumsum(1), numbers(6, 40)),
    "expanded": (lambda x: x.detach()[:, None].expand(6, 5, 40).cumsum(1), numbers(6, 40)),
    "integers": (lambda i: i.cumsum(1), torch.arange(2**24 - 4, 2**24 + 8).view(3, 4)),
    "products of integers": (lambda i: (i.clamp(-2, 2)).cumprod(1), torch.arange(-60, 60).view(3, 40)),
    "rounded before": (lambda x: x.detach().cumsum(1, dtype=torch.bfloat16), numbers(6, 40)),
    "in fp64": (lambda x: x.detach().cumsum(1, dtype=torch.float64), numbers(6, 40)),
}


def both_ways(name: str):
    """Function with running sums or products, "cumsum" or "cumprod", from both ends of rows."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        scan = getattr(torch, name)
        return scan(x, 1), scan(x.flip(1), 1).flip(1)

    return function


def has_scans(lines) -> bool:
    """True if kernels of a plan have scans; lines: kinds, and operations."""
    return any("cum" in operation for _, operations in lines for operation in operations)
