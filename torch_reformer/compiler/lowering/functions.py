"""Expressions of programs for functions that are no operation of programs. Each has eager's values for NaN, infinity
and zeros with their signs, and errors of at most two units in the last place more."""

from __future__ import annotations

import math

from ... import program as p
from ...program import Value as Expression

_LOG_OF_2 = math.log(2)
_LARGE = 1e9  # 1 + x * x is x * x in fp64, too
_MOST = 88.0  # e^x is a float


def is_nan(x):
    return Expression("ne", x, x)


def _three_halves(x):
    return p.select(p.equal(x, -math.inf), math.inf, x * p.sqrt(x))  # as IEEE 754's pow


def power(x, exponent):
    """x to the power of a number; for some numbers by multiplications or a root."""
    whole = {1: lambda: x, 2: lambda: x * x, 3: lambda: x * x * x, 4: lambda: (x * x) * (x * x), -1: lambda: 1 / x}
    roots = {0.5: lambda: p.sqrt(x), -0.5: lambda: p.rsqrt(x), -2: lambda: 1 / (x * x), 1.5: lambda: _three_halves(x)}
    return (whole | roots).get(exponent, lambda: p.pow(x, exponent))()


def gelu(x, approximate="none"):
    return p.gelu_tanh(x) if approximate == "tanh" else p.gelu(x)


def gelu_backward(grad, x, approximate="none"):
    if approximate == "none":
        return grad * (p.normal_cdf(x) + x * p.normal_pdf(x))
    return grad * p.gelu_tanh_slope(x)


def other_side(x):
    """The third side of a triangle with a right angle, for a longest side of 1; NaN beyond it."""
    return p.sqrt((1 - x) * (1 + x))


def sinh(x):
    size = abs(x)
    less_1, root = p.expm1(size), p.exp(size * 0.5)
    return p.copysign(p.select(size > _MOST, 0.5 * root * root, 0.5 * (less_1 + less_1 / (less_1 + 1))), x)


def cosh(x):
    size = abs(x)
    power, root = p.exp(size), p.exp(size * 0.5)
    return p.select(size > _MOST, 0.5 * root * root, 0.5 * power + 0.5 / power)


def asinh(x):
    size = abs(x)
    near = p.log1p(size + size * size / (1 + p.sqrt(1 + size * size)))
    return p.copysign(p.select(size > _LARGE, p.log(size) + _LOG_OF_2, near), x)


def acosh(x):
    less_1 = x - 1
    return p.select(x > _LARGE, p.log(x) + _LOG_OF_2, p.log1p(less_1 + p.sqrt(less_1) * p.sqrt(less_1 + 2)))


def atanh(x):
    size = abs(x)
    return p.copysign(0.5 * p.log1p(2 * size / (1 - size)), x)


def hypot(x, y):
    """sqrt(x * x + y * y), whose squares do not overflow; infinity beside NaN, too."""
    x, y = abs(x), abs(y)
    larger = p.maximum(x, y)
    ratio = p.minimum(x, y) / larger
    root = p.select(p.equal(larger, 0), larger, larger * p.sqrt(1 + ratio * ratio))
    return p.select(p.equal(x, math.inf), math.inf, p.select(p.equal(y, math.inf), math.inf, root))


def sign(x):
    return (x > 0) - (x < 0)


def fmax(x, y):
    """The larger number; NaN only if both are."""
    return p.select(is_nan(x), y, p.select(is_nan(y), x, p.maximum(x, y)))


def ceil(x):
    return -p.floor(-x)


def trunc(x):
    return p.select(x < 0, ceil(x), p.floor(x))


def _has_other_sign(rest, divisor):
    return p.select(p.equal(rest, 0), 0, Expression("ne", divisor < 0, rest < 0))


def remainder(x, y):
    """The rest with the divisor's sign, as Python's."""
    rest = p.fmod(x, y)
    return p.select(_has_other_sign(rest, y), rest + y, rest)


def divided(x, y, rounding_mode=None):
    """Division whose result is rounded down ("floor"), as Python's, or towards 0 ("trunc")."""
    if rounding_mode != "floor":
        return x / y if rounding_mode is None else trunc(x / y)
    rest = p.fmod(x, y)
    quotient = (x - rest) / y
    quotient = p.select(_has_other_sign(rest, y), quotient - 1, quotient)
    below = p.floor(quotient)
    whole = p.select(quotient - below > 0.5, below + 1, below)
    return p.select(p.equal(y, 0), x / y, p.select(p.equal(quotient, 0), p.copysign(0, x / y), whole))
