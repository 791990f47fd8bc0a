"""Functions of whole numbers that programs compute, and those that stay calls, as fp32 does not hold their numbers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

EDGE = 2**24  # fp32 has all whole numbers below it
_BITS = 0, 23, 24, 25, 30, 47, 48, 49, 53, 62


def ids(*sizes: int) -> Tensor:
    return torch.randint(0, 9, sizes, generator=torch.Generator().manual_seed(0))


def large() -> Tensor:
    """Numbers that fp32 has, and their neighbours that it rounds."""
    near = [EDGE - 1, EDGE, EDGE + 1, EDGE + 2, EDGE + 3, 2**40 + 1, 2**62 + 1]
    return torch.tensor([*near, *(-n for n in near), 0, 1, -1, 7]).view(2, 9)


def edges(dtype: torch.dtype = torch.int64) -> Tensor:
    """The type's limits, and numbers around the ends of digits, which fp32 or fp64 do not tell apart."""
    limits = torch.iinfo(dtype)
    near = (sign * 2**bits + one for bits in _BITS for sign in (1, -1) for one in (-1, 0, 1))
    return torch.tensor([limits.min, limits.max, *(n for n in near if limits.min < n < limits.max)], dtype=dtype)


def compared(x, y) -> tuple[Tensor, ...]:
    return x == y, x != y, x < y, x <= y, x > y, x >= y


def pairs(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Comparisons of all numbers with all others."""
    return compared(x[:, None], y)


def with_constants(x: Tensor) -> list[tuple[Tensor, ...]]:
    limits = torch.iinfo(x.dtype)
    constants = EDGE, EDGE + 1, -EDGE - 1, 2**53 + 1, 2**48, limits.max, limits.min
    return [compared(x, constant) for constant in constants if limits.min <= constant <= limits.max]


def among_documents(document: Tensor, scores: Tensor) -> Tensor:
    """Scores within a document, less the largest."""
    scores = scores.masked_fill(document[:, :, None] != document[:, None], -math.inf)
    return scores - scores.amax(-1, keepdim=True)


def numbers(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1)) * 20


TIES = torch.randint(0, 4, (6, 40), generator=torch.Generator().manual_seed(2)).float()
NANS = TIES.clone()
NANS[1, 7] = NANS[2, 3] = NANS[2, 20] = math.nan
NANS[3], NANS[4] = -math.inf, math.inf

# Each function with its arguments.
PROGRAMS = {
    "one-hot": (lambda i: F.one_hot(i, 9).float(), ids(6, 40)),
    "one-hot, stored": (lambda i: F.one_hot(i, 9), ids(6, 40)),
    "large ids one-hot": (lambda i: F.one_hot(i.clamp(0, 6), 7), large()),
    "compared with a number": (lambda i: ((i > 7).float(), i == EDGE - 1, i != -3, i <= -EDGE + 1), large()),
    "truths": (lambda i: (i.bool(), i.logical_not(), i.any(1), i.all(1)), large()),
    "compared with a float": (lambda i: (i > 0.5, i < -7.25), large()),
    "compared with floats": (lambda i, x: x > i, ids(6, 40), numbers(6, 40)),
    "beside fp64": (lambda i, x: (x * i, x > i, x / i.clamp(1, 5)), large(), numbers(2, 9).double()),
    "beside bf16": (lambda i, x: (x >= i, x * i), ids(6, 40) + 255, (numbers(6, 40) + 256).bfloat16()),
    "beside fp16": (lambda i, x: x == i, large(), numbers(2, 9).half()),
    "to floats": (lambda i: (i.float() * 2, i / 3, i.bfloat16() + 1), large()),
    "clamped": (lambda i: i.clamp(-5, 7), large()),
    "from floats": (lambda x: ((x * 2).long(), x.int()), numbers(6, 40).clamp(-100, 100)),
    "from bf16": (lambda x: (x.long(), x.int()), numbers(6, 40).bfloat16()),
    "from truths": (lambda x: ((x > 0).long() * 5 - 2, (x > 0).int()), numbers(6, 40)),
    "chosen": (lambda x: torch.where(x > 0, 3, -4), numbers(6, 40)),
    "arithmetic": (lambda x: ((y := (x > 0).long()) * y + 3 * y - (x > 1).int()) ** 2, numbers(6, 40)),
    "zeros without a sign": (
        lambda x, t: (1 / (-t.long()).float(), 1 / (x / 100).long(), x / (t.int() * -4), 1 / (t.long() - 1)),
        numbers(6, 40),
        numbers(6, 40) > 0,
    ),
    "up to the edge": (lambda x: (x > 0).long() * (EDGE - 1), numbers(6, 40)),
    "counted": (lambda x: ((x > 0).sum(1), (x > 0).sum(), (x > 0).long().sum(0) * 2), numbers(6, 40)),
    "rows": (lambda x: (x > x.mean(1, keepdim=True)).long(), numbers(6, 40)),
    "transposed": (lambda i, x: (i.t() > 3) * x, ids(40, 64), numbers(64, 40)),
    "sliced": (lambda x: ((x > 0).long() + 1)[:, 3:9].contiguous(), numbers(6, 40)),
    "padded": (lambda x: F.pad((x > 0).long(), (1, 2), value=7), numbers(6, 40)),
    "one number": (lambda i, x: x * (i > 3), ids(1)[0], numbers(6, 40)),
    "compared with each other": (lambda i: i[:, :, None] == i[:, None], large()),
    "compared with a large number": (lambda i: (i == EDGE, i > EDGE + 1), large()),
    "any numbers": (pairs, edges(), edges()),
    "any of int32": (pairs, edges(torch.int32), edges(torch.int32)),
    "int32 with int64": (pairs, edges(torch.int32), edges()),
    "int64 with int32": (pairs, edges(), edges(torch.int32)),
    "with large constants": (with_constants, edges()),
    "with large constants of int32": (with_constants, edges(torch.int32)),
    "with a number in a tensor": (compared, edges(), torch.tensor(2**53 + 1)),
    "a number in a tensor with others": (compared, torch.tensor(2**53 + 1), edges()),
    "two numbers": (compared, torch.tensor(2**53 + 1), torch.tensor(2**53)),
    "one element with others": (compared, edges()[5:6], edges()),
    "equal rows and columns": (lambda i, x: (i[:, None] == i[None]) * x, edges(), numbers(edges().numel(), 1)),
    "documents": (among_documents, edges()[::2].repeat(2, 1), numbers(2, *edges()[::2].shape * 2)),
    "transposed numbers": (lambda i, j: i.t() <= j, edges()[:60].view(6, 10), edges()[:60].view(10, 6)),
    "beside fp64, of any size": (lambda i, x: (i[:, None] < i) * x, edges(), numbers(edges().numel(), 1).double()),
    "chosen among": (lambda i, t: pairs(torch.where(t, i, -1), torch.where(t, 2**60 + 1, i)), edges(), edges() % 3 > 0),
    "chosen among small ones": (
        lambda i, t: pairs(torch.where(t, i, (~t).long() * (EDGE - 1) - 7), i),
        edges(),
        edges() % 3 > 0,
    ),
    "limited": (lambda i: pairs(i.clamp(-(2**40) - 1, 2**50 + 1), i.clamp(min=5)), edges()),
    "limited by others": (lambda i, j: pairs(i.maximum(j), i.minimum(j).long()), edges(), edges().roll(7)),
    "wider": (lambda i, j: pairs(i.long(), j), edges(torch.int32), edges()),
    "views of limited ones": (
        lambda i: (i.clamp(max=9)[:, :, None] < i[:, None], i.clamp(min=i[0])[:, :3] == i[:, 2:5]),
        edges()[:60].view(6, 10),
    ),
    "nothing known of int32": (lambda i: (i.to(torch.int32) > 3, i.to(torch.int32).float()), ids(6, 40).int()),
}
CALLS = {
    "added": (lambda i: i + 1, large()),
    "negated": (lambda i: -i, large()),
    "multiplied": (lambda i: i * 3, large()),
    "bounded on one side": (lambda i: (i.clamp(min=0), i.clamp(max=5)), large()),
    "beyond the edge": (lambda x: (x > 0).long() * EDGE, numbers(6, 40)),
    "sums beyond the edge": (lambda x: ((x > 0).long() * (EDGE - 1)).sum(1), numbers(6, 40)),
    "quotients": (lambda i: (i // 3, i % 5, i.div(2, rounding_mode="floor")), large()),
    "chosen": (lambda i, x: torch.where(x > 0, i, 0), large(), numbers(2, 9)),
    "bits": (lambda i: (i & 3, i | 4, ~i), large()),
    "padded": (lambda i: F.pad(i, (1, 1)), large()),
    "wrapped by a narrower type": (lambda x: (x.long() * 1000000000000).int(), numbers(6, 40).clamp(-9, 9)),
    "floats wrapped by a narrower type": (lambda x: (x.long().int(), x.long().int() > 0), numbers(6, 40) * 2**30),
    "in fp64": (lambda i: (i.double().long(), i.double() == EDGE, (i.double() + 1).long()), large()),
    "from fp64": (lambda x: ((x * 2**40).long(), (x * 2**40).long() > 3), numbers(6, 40).double()),
    "truths in fp64": (lambda t: (t.double() * (EDGE + 1)) == EDGE, numbers(6, 40) > 0),
    "padded by a large number": (lambda x: F.pad((x > 0).long(), (1, 2), value=EDGE + 1), numbers(6, 40)),
    "wrapped by the other's type": (compared, edges(torch.int32), torch.tensor(2**32 + 1)),
    "wrapped numbers": (lambda i: compared(i, 2**32 + 1), edges(torch.int32)),
    "every other number": (lambda i: i[::2] > i[1::2], edges()[:60]),
    "narrower types": (lambda i: i.to(torch.int16) + 1, ids(6, 40)),
}

PLACES = {
    "rows": numbers(6, 40),
    "ties": TIES,
    "NaN and infinities": NANS,
    "bf16": numbers(6, 40).bfloat16(),
    "fp64": numbers(6, 40).double(),
    "more dimensions": TIES.view(2, 3, 8, 5).transpose(1, 2),
    "one element": numbers(6, 1),
    "one row": numbers(40),
}
