"""Element-wise operators of random graphs: as in random_operators.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from random_graphs import Drawing

UNARY = (
    "exp log log1p sqrt rsqrt reciprocal tanh sigmoid erf relu exp2 expm1 log2 log10 sin cos tan asin acos "
    "atan sinh cosh asinh acosh atanh angle sign sgn signbit floor ceil trunc frac round isnan isinf "
    "isfinite square abs neg logical_not nan_to_num deg2rad logit"
).split()
ACTIVATIONS = (
    *("gelu", "silu", "softplus", "elu", "leaky_relu", "hardswish", "hardsigmoid", "hardtanh", "mish", "selu", "celu"),
    *("logsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink", "relu6", "threshold_"),
)
# Gradients of NaN depend on eager's kernel: of vectors, of single elements, or of GPUs.
OTHER_NANS = ("elu", "selu", "celu", "softshrink", "hardshrink", "hardtanh", "relu6")
OF_SIGNS = ("signbit", "copysign", "atan2", "angle", "reciprocal", "div", "rsqrt", "pow")
BINARY = (
    *("add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign", "pow", "fmod"),
    *("remainder", "floor_divide", "logical_and", "logical_or", "logical_xor", "lt", "le", "gt", "ge", "eq", "ne"),
    *("xlogy", "logaddexp"),
)
NUMBERS = (1, 2, 0.5, -1.5, 0, 3, -1, 0.1)


def _has_zeros(d: Drawing, x: str) -> bool:
    """True if a computed tensor has zeros: the sign of clamps' and others' depends on eager's kernel."""
    return x.startswith("t") and bool((d.tensors[x] == 0).any())


def unary(d: Drawing, x: str) -> str | None:
    name = d.choose(UNARY)
    return None if name in OF_SIGNS and _has_zeros(d, x) else f"torch.{name}({x})"


def activation(d: Drawing, x: str) -> str | None:
    name = d.choose(ACTIVATIONS)
    if name in OTHER_NANS and not d.tensors[x].isfinite().all():
        return None
    if name in ("hardsigmoid", "hardswish") and d.tensors[x].dtype == torch.float64:  # eager's 1 / 6 is fp32
        return None
    if name == "threshold_":
        return f"F.threshold({x}, 0.1, -1.0)"
    if name == "gelu":
        return f"F.gelu({x}, approximate={d.choose(('none', 'tanh'))!r})"
    return f"F.{name}({x})"


def binary(d: Drawing, x: str) -> str:
    name, other = d.choose(BINARY), d.other(x)
    if other == x and name in ("atan2", "hypot"):  # whose gradients cancel
        return None
    if name in OF_SIGNS and (_has_zeros(d, x) or _has_zeros(d, other)):
        return None
    return f"torch.{name}({x}, {other})"


def with_number(d: Drawing, x: str) -> str:
    name, number = d.choose(BINARY), d.choose(NUMBERS)
    if name in ("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "logaddexp"):
        return f"{x}.clamp({d.choose(('min', 'max'))}={number})"
    if name in OF_SIGNS and _has_zeros(d, x):
        return None
    if name in ("sub", "pow", "div") and d.is_true():
        return {"sub": f"{number} - {x}", "pow": f"2.0 ** {x}", "div": f"{number} / {x}"}[name]
    if name == "div" and d.is_true():
        return f"torch.div({x}, {number}, rounding_mode={d.choose(('floor', 'trunc'))!r})"
    return f"torch.{name}({x}, {number})"


def large(d: Drawing, x: str) -> str:
    """Comparison of whole numbers that fp32 may not have, of the tensor's sizes. Nothing else reads these: some of
    PyTorch's decompositions, as threshold's, round them."""
    name = d.choose(("eq", "ne", "lt", "le", "gt", "ge"))
    shape = d.tensors[x].shape
    sizes = [tuple(d.choose((size, 1)) for size in shape) for _ in range(2)]
    one, other = (
        d.given(
            each,
            d.choose(("int64", "int64", "int32")),
            "large",
            d.choose(("contiguous", "contiguous", "transposed", "offset", "expanded")),
        )
        for each in sizes
    )
    for each in (one, other):
        del d.tensors[each]
    if changed := d.choose(("", "", ".clamp(min=-5)", ".clamp(max=2**30 + 1)", ".long()")):
        other += changed
    elif d.is_true():
        other = f"torch.where({other} > 0, {other}, {one})"
    elif d.is_true():
        other = d.choose(("2**24 + 1", "-(2**24) - 1", "2**31 - 1"))
    return f"torch.{name}({one}, {other})" + d.choose(("", f" * {x}"))


def where(d: Drawing, x: str) -> str | None:
    mask = d.tensor(lambda tensor: tensor.dtype == torch.bool) or f"({x} > 0)"
    return f"torch.where({mask}, {x}, {d.choose((d.other(x), '0.5', '-math.inf'))})"


def masked_fill(d: Drawing, x: str) -> str:
    return f"{x}.masked_fill({d.other(x)} > 0, {d.choose(('0.0', '-math.inf', '1.5'))})"


def cast(d: Drawing, x: str) -> str:
    return f"cast({x}, torch.{d.choose(('float32', 'bfloat16', 'float16', 'bool', 'int64', 'int32'))})"
