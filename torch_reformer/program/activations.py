"""Activations composed of program operations; values and derivatives equal torch.nn.functional's, also at kinks,
infinities and NaN."""

from __future__ import annotations

import math

from .values import Value, clip, normal_cdf, relu, select, sigmoid, tanh

# 2 u = _LINEAR x + _CUBIC x^3 in GELU's tanh approximation.
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def identity(x: Value) -> Value:
    """The value itself."""
    return x


def relu6(x: Value) -> Value:
    """min(relu(x), 6)."""
    return clip(x, 0, 6)


def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """x where it is above 0, else negative_slope * x."""
    return select(x > 0, x, x * negative_slope)


def silu(x: Value) -> Value:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Value) -> Value:
    """x * Phi(x), computed with the error function."""
    return x * normal_cdf(x)


def gelu_tanh(x: Value) -> Value:
    """Tanh approximation of GELU, x (1 + tanh(u)) / 2, as x sigmoid(2 u), without a difference of numbers near 1."""
    return x * _factor_of_gelu_tanh(x)


def gelu_tanh_slope(x: Value) -> Value:
    """Derivative of gelu_tanh. The factor that is 0 far below 0 comes before the cubic ones, which overflow."""
    factor = _factor_of_gelu_tanh(x)
    return factor + x * factor * (1 - factor) * (_LINEAR + 3 * _CUBIC * (x * x))


def _factor_of_gelu_tanh(x: Value) -> Value:
    return sigmoid(x * (_LINEAR + _CUBIC * (x * x)))


def hardswish(x: Value) -> Value:
    """x * min(max(x + 3, 0), 6) / 6."""
    return x * clip(x + 3, 0, 6) / 6


def hardsigmoid(x: Value) -> Value:
    """min(max(x + 3, 0), 6) / 6."""
    return clip(x + 3, 0, 6) / 6


# Values of the argument `activation` of operators and modules.
ACTIVATIONS = {
    "none": identity,
    "relu": relu,
    "relu6": relu6,
    "leaky_relu": leaky_relu,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "hardswish": hardswish,
    "hardsigmoid": hardsigmoid,
    "sigmoid": sigmoid,
    "tanh": tanh,
}


def activation(name: str):
    """Return the activation function with this name."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name]
