"""PyTorch's element-wise operators as expressions of programs. A new one is a line of the table."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import program as p
from ..program import Value as Expression

aten = torch.ops.aten


class NotElementWise(Exception):
    """With these arguments no program computes it."""


def _scaled(x, alpha):
    return x if alpha == 1 else x * alpha


def _power(x, exponent):
    whole = {1: lambda: x, 2: lambda: x * x, 3: lambda: x * x * x, 4: lambda: (x * x) * (x * x), -1: lambda: 1 / x}
    roots = {0.5: lambda: p.sqrt(x), -0.5: lambda: p.rsqrt(x), -2: lambda: 1 / (x * x), 1.5: lambda: x * p.sqrt(x)}
    found = (whole | roots).get(exponent)
    if found is None:
        raise NotElementWise
    return found()


def _clamp(x, least=None, most=None):
    x = x if least is None else p.maximum(x, least)
    return x if most is None else p.minimum(x, most)


def _not(x):
    return p.equal(x, 0.0)


def _both(x, y):
    return p.select(x, Expression("ne", y, 0.0), 0.0)


def _either(x, y):
    return p.select(x, 1.0, Expression("ne", y, 0.0))


def _different(x, y):
    return Expression("ne", x, y)


def _cast(x, **_):
    return x


def _gelu(x, approximate="none"):
    return p.gelu_tanh(x) if approximate == "tanh" else p.gelu(x)


def _where(condition, x, y):
    return p.select(condition, x, y)


# Each takes what the operator does, with expressions or numbers in the place of tensors.
EXPRESSIONS: dict[Callable, Callable[..., Expression]] = {
    aten.add.Tensor: lambda x, y, alpha=1: x + _scaled(y, alpha),
    aten.add.Scalar: lambda x, y, alpha=1: x + y * alpha,
    aten.sub.Tensor: lambda x, y, alpha=1: x - _scaled(y, alpha),
    aten.sub.Scalar: lambda x, y, alpha=1: x - y * alpha,
    aten.rsub.Scalar: lambda x, y, alpha=1: y - _scaled(x, alpha),
    aten.mul.Tensor: lambda x, y: x * y,
    aten.mul.Scalar: lambda x, y: x * y,
    aten.div.Tensor: lambda x, y: x / y,
    aten.div.Scalar: lambda x, y: x / y,
    aten.neg.default: lambda x: -x,
    aten.abs.default: abs,
    aten.exp.default: p.exp,
    aten.log.default: p.log,
    aten.sqrt.default: p.sqrt,
    aten.rsqrt.default: p.rsqrt,
    aten.reciprocal.default: lambda x: 1 / x,
    aten.tanh.default: p.tanh,
    aten.sigmoid.default: p.sigmoid,
    aten.erf.default: p.erf,
    aten.relu.default: p.relu,
    aten.gelu.default: _gelu,
    aten.silu.default: p.silu,
    aten.pow.Tensor_Scalar: _power,
    aten.maximum.default: p.maximum,
    aten.minimum.default: p.minimum,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_max.default: lambda x, most: p.minimum(x, most),
    aten.where.self: _where,
    aten.gt.Tensor: lambda x, y: x > y,
    aten.gt.Scalar: lambda x, y: x > y,
    aten.ge.Tensor: lambda x, y: x >= y,
    aten.ge.Scalar: lambda x, y: x >= y,
    aten.lt.Tensor: lambda x, y: x < y,
    aten.lt.Scalar: lambda x, y: x < y,
    aten.le.Tensor: lambda x, y: x <= y,
    aten.le.Scalar: lambda x, y: x <= y,
    aten.eq.Tensor: p.equal,
    aten.eq.Scalar: p.equal,
    aten.ne.Tensor: _different,
    aten.ne.Scalar: _different,
    aten.logical_not.default: _not,
    aten.logical_and.default: _both,
    aten.logical_or.default: _either,
    aten._to_copy.default: _cast,
    aten.clone.default: _cast,
    aten.alias.default: _cast,
    aten.copy.default: lambda x, y, non_blocking=False: y,
}
# The same of truth values only: of whole numbers they are something else.
OF_TRUTHS: dict[Callable, Callable[..., Expression]] = {
    aten.bitwise_not.default: _not,
    aten.bitwise_and.Tensor: _both,
    aten.bitwise_or.Tensor: _either,
}


COMPARISONS = {
    each
    for name in ("gt", "ge", "lt", "le", "eq", "ne")
    for each in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}
# Those that give 0 and 1; of the others' truth values anything but 0 is true.
GIVE_TRUTHS = {
    *(*COMPARISONS, *OF_TRUTHS),
    *(aten.logical_not.default, aten.logical_and.default, aten.logical_or.default),
}


def _number(value):
    return value if isinstance(value, (int, float, bool)) else None


# What has the same number in each element: that number, of the operator's arguments.
CONSTANTS: dict[Callable, Callable] = {
    aten.full.default: lambda sizes, number: _number(number),
    aten.full_like.default: lambda like, number: _number(number),
    aten.scalar_tensor.default: _number,
    aten.zeros.default: lambda *_: 0.0,
    aten.zeros_like.default: lambda *_: 0.0,
    aten.ones.default: lambda *_: 1.0,
    aten.ones_like.default: lambda *_: 1.0,
    aten.new_zeros.default: lambda *_: 0.0,
}
