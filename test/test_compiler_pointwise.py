"""Element-wise operators are planned as programs: values of eager's on a grid of special ones, and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from marks import needs_aten, slow

pytestmark = needs_aten
SPECIAL = [0.0, -0.0, 0.25, -0.5, 0.5, 1.0, -1.0, 1.5, -2.0, 2.5, 3.0, -7.0, 100.0, -128.0, 1e9, -1e30]
SPECIAL += [1e-30, math.inf, -math.inf, math.nan]
COUNT = len(SPECIAL)
TOLERANCE = {torch.float32: 5e-7, torch.float64: 5e-15, torch.bfloat16: 0.008}
# Eager's results in fp32 are wrong for large quotients: on a CPU 1e30 % 3 may be NaN.
SMALL = ("fmod", "remainder", "floor division", "remainder of a number")
UNSIGNED = ("fmax", "fmin")  # either zero

OF_ONE = {
    **{name: getattr(torch, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{name: getattr(torch, name) for name in ("asinh", "acosh", "atanh", "exp2", "expm1", "log2", "log10")},
    **{name: getattr(torch, name) for name in ("floor", "ceil", "trunc", "frac", "round", "sign", "signbit")},
    **{name: getattr(torch, name) for name in ("isnan", "isinf", "isfinite", "isposinf", "square", "reciprocal")},
    **{name: getattr(torch, name) for name in ("angle", "sinc", "nan_to_num", "deg2rad")},
    **{f"power {number}": lambda x, number=number: x**number for number in (0, 2.5, -3, 7, 0.375, 0.5, 1.5)},
    **{f"power of {number}": lambda x, number=number: number**x for number in (2, 0.5, 0, 1)},
    "remainder of a number": lambda x: x % 3.0,
    "number % x": lambda x: torch.remainder(3.0, x.detach()),
    "fmod by a number": lambda x: torch.fmod(x.clamp(-1e4, 1e4), 0.75),
    "divided by a number and rounded": lambda x: torch.div(x.clamp(-1e4, 1e4), 0.75, rounding_mode="floor"),
    "sgn": lambda x: torch.sgn(x.detach()),
    "copysign by a number": lambda x: torch.copysign(x, -0.0),
    "truths": lambda x: ((x > 0) ^ (x < 1)).logical_xor(x == 3) | ~(x > 2) & (x <= 7),
    "truths of numbers": lambda x: torch.logical_xor(x, x.clamp(0, 1)),
    "where with numbers": lambda x: torch.where(x > 0, 2.0, -1.0),
    "where with one number": lambda x: torch.where(x.isnan(), 1.0, x),
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "selu": F.selu,
    "mish": F.mish,
    "silu": F.silu,
}
OF_TWO = {
    **{name: getattr(torch, name) for name in ("pow", "fmod", "remainder", "atan2", "copysign", "fmax", "fmin")},
    **{name: getattr(torch, name) for name in ("hypot", "maximum", "minimum", "xlogy", "logaddexp", "rsub")},
    "floor division": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "truncated division": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "clamp": lambda x, y: x.clamp(y, y + 1),
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "isclose": torch.isclose,
    "xor": lambda x, y: (x > 0) ^ (y > 0),
}


def numbers(dtype):
    return torch.tensor(SPECIAL, dtype=dtype)


def grids(name, dtype):
    x = numbers(dtype)
    if name in SMALL:
        x = torch.where(x.abs() > 1e4, x.new_tensor(math.inf).copysign(x), x)
    if name not in OF_TWO:
        return (x,)
    if name in SMALL:
        x = torch.where(x.abs() < 1e-4, 0, x)
    return tuple(each.contiguous() for each in torch.cartesian_prod(x, x).unbind(1))


def run(function, arguments, compiled):
    reports = []
    leaves = [each.clone().requires_grad_() for each in arguments]
    result = (without_dynamo(function, reports.append) if compiled else function)(*leaves)
    gradients = []
    if result.requires_grad:
        weights = torch.arange(1, result.numel() + 1).remainder(3).add(1).to(result.dtype).view(result.shape)
        gradients = torch.autograd.grad(result, leaves, weights, materialize_grads=True)
    kinds = [line.kind for report in reports for line in report.lines]
    return result.detach(), gradients, kinds


@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.float64, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("name", OF_ONE | OF_TWO)
def test_as_in_eager(name, dtype):
    function, arguments = (OF_ONE | OF_TWO)[name], grids(name, dtype)
    result, gradients, kinds = run(function, arguments, True)
    assert {*kinds} == {"stitch"}
    expected, theirs, _ = run(function, arguments, False)
    torch.testing.assert_close(result, expected, rtol=TOLERANCE[dtype], atol=1e-44, equal_nan=True)
    if expected.dtype != torch.bool and name not in UNSIGNED:
        zeros = expected == 0
        assert torch.equal(result.signbit()[zeros], expected.signbit()[zeros])
    scale = 4 * TOLERANCE[dtype]
    torch.testing.assert_close([*gradients], [*theirs], rtol=scale, atol=scale, equal_nan=True)


def test_arguments_distinguish_operations():
    """Operations of equal operands are shared, unless their arguments differ."""

    def function(x):
        floor, trunc = (torch.div(x, 2.0, rounding_mode=mode) for mode in ("floor", "trunc"))
        return floor - trunc, F.gelu(x) - F.gelu(x, approximate="tanh")

    x = torch.linspace(-3, 3, 64)
    for result, expected in zip(without_dynamo(function, lambda _: None)(x), function(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)
        assert expected.any()


def test_values_of_16_bits_are_rounded_before_they_jump():
    """A quotient in a program may be 1.9999999 or 2.003, where eager's, of 16 bits, is 2."""
    x = torch.arange(1, 2049, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        numbers = x.to(dtype)
        for function in (
            lambda x: (x / 3).floor(),
            lambda x: (x * 1.001).round(),
            lambda x: torch.fmod(x * 0.1, 1.0),
            lambda x: (x * 40).isinf(),
            lambda x: (x * 1.001).eq(x),
        ):
            result, _, kinds = run(lambda x, function=function: function(x.detach()), (numbers,), True)
            assert kinds == ["stitch"]
            assert torch.equal(result, function(numbers))


def test_integers_stay_with_pytorch():
    """Integers of 32 and 64 bits are not all fp32 numbers: they stay with PyTorch's kernels."""
    x = torch.tensor([2**24 + 1, 5, -(2**31)])
    for function in (lambda x: x == 2**24, lambda x: x + 1, lambda x: x % 3, lambda x: x // 2, torch.sign):
        assert torch.equal(without_dynamo(function, lambda _: None)(x), function(x))


def test_factors_of_integers_are_truncated():
    x, y = torch.tensor([3, 4]), torch.tensor([2, 5])

    def function(x, y):
        return torch.addcmul(x, y, y, value=1.5), torch.addcmul(x * 0.5, y * 1.0, y * 1.0, value=1.5)

    for result, expected in zip(without_dynamo(function, lambda _: None)(x, y), function(x, y), strict=True):
        assert torch.equal(result, expected) and result.dtype == expected.dtype
