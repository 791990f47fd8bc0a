"""Functions with shorter formulas for 16-bit results, checked for every number of such a type."""

import math

import pytest
import torch

import emulator
from emulator.stitching import stitch
from torch_reformer import program
from torch_reformer.program import Program

pytestmark = emulator.needed
X = program.acc()
TINY = 2.0**-125  # GPUs flush less than half of it to 0
FACTORS = {"gelu_tanh": 2**4, "its slope": 2**8}  # at most, by which such small numbers are multiplied


def exact_cdf(x):
    return torch.erfc(-math.sqrt(0.5) * x) / 2


def chance_of(x):
    return torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def exact_gelu_tanh(x):
    return x * chance_of(x)


def exact_gelu_tanh_slope(x):
    """NaN where x * x is infinite in fp32, as in eager mode."""
    slope = chance_of(x) + x * chance_of(x) * chance_of(-x) * math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return slope.masked_fill((x * x).float().isinf(), math.nan)


FUNCTIONS = {  # each with the exact one in fp64
    "normal_cdf": (program.normal_cdf(X), exact_cdf),
    "normal_pdf": (program.normal_pdf(X), lambda x: (x * x / -2).exp() / math.sqrt(2 * math.pi)),
    "gelu": (program.gelu(X), lambda x: x * exact_cdf(x)),
    "sigmoid": (program.sigmoid(X), torch.sigmoid),
    "tanh": (program.tanh(X), torch.tanh),
    "gelu_tanh": (program.gelu_tanh(X), exact_gelu_tanh),
    "its slope": (program.gelu_tanh_slope(X), exact_gelu_tanh_slope),
    "log1p": (program.log1p(X), torch.log1p),
    "softplus": (program.log1p(program.exp(-abs(X))), lambda x: (-x.abs()).exp().log1p()),
    "quotient": (3 / X, lambda x: 3 / x),
}


def every(dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers.view(1, 8, 8192, 1).contiguous(memory_format=torch.channels_last)


def in_order(numbers: torch.Tensor) -> torch.Tensor:
    """Integers by which adjacent numbers of the type differ by 1; -0 is 0."""
    bits = numbers.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_is_the_exact_number_rounded(name, dtype):
    """One result in 1000 may be the adjacent number, where the exact one is about halfway between the two."""
    value, function = FUNCTIONS[name]
    x = every(dtype)
    (got,) = stitch(Program(program.store(value)), x, [])
    expected = function(x.double()).to(dtype)
    assert torch.equal(got.isnan(), expected.isnan())
    most = TINY * FACTORS.get(name, 1)
    tiny = (got.abs() < most) & (expected.abs() < most)
    apart = (in_order(got) - in_order(expected)).abs().where(~expected.isnan() & ~tiny, 0)
    assert apart.max() <= 1, x[apart > 1]
    assert (apart > 0).float().mean() < 1 / 1000


SHORT = {
    "gelu": FUNCTIONS["gelu"],
    "its slope": (
        program.normal_cdf(X) + X * program.normal_pdf(X),
        lambda x: exact_cdf(x) + x * FUNCTIONS["normal_pdf"][1](x),
    ),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_functions(name):
    """Programs on sums: results are the exact numbers rounded, or adjacent ones; of normal numbers the error is that of
    rounding."""
    value, function = SHORT[name]
    tested = Program(program.store(value))
    x = every(torch.bfloat16)
    (got,) = stitch(tested, x, [], defines=("REFORMER_ON_SUMS",))
    expected = function(x.double())
    assert torch.equal(got.isnan(), expected.isnan())
    there = ~expected.isnan()
    assert torch.equal(got[there & (x.abs() > 14)], expected[there & (x.abs() > 14)].to(got.dtype))
    near = there & (x.abs() < 5.5)
    most = 1e-4 if name == "its slope" else TINY  # which has a zero at -0.75
    assert ((got.double() - expected).abs()[near] <= 2**-8 * expected.abs()[near] + most).all()
    drawn = torch.randn(1, 8, 8192, 1, generator=torch.Generator().manual_seed(0))
    drawn = drawn.bfloat16().contiguous(memory_format=torch.channels_last)
    (got,) = stitch(tested, drawn, [], defines=("REFORMER_ON_SUMS",))
    expected = function(drawn.double())
    rounded = expected.bfloat16().double()
    assert (got.double() - expected).square().mean() < 1.005 * (rounded - expected).square().mean()


@pytest.mark.parametrize("name", SHORT)
def test_fp16_has_no_short_functions(name):
    tested, x = Program(program.store(SHORT[name][0])), every(torch.float16)
    (short,), (plain,) = stitch(tested, x, [], defines=("REFORMER_ON_SUMS",)), stitch(tested, x, [])
    assert torch.equal(short.view(torch.int16), plain.view(torch.int16))


def test_functions_beside_fp32():
    """An output in fp32 is more exact than numbers of 16 bits."""
    value, function = SHORT["gelu"]
    x = torch.randn(1, 8, 512, 1).bfloat16().contiguous(memory_format=torch.channels_last)
    tested = Program(program.store(value, torch.float32), program.store(value))
    got, _ = stitch(tested, x, [], defines=("REFORMER_ON_SUMS",))
    torch.testing.assert_close(got.double(), function(x.double()), rtol=1e-5, atol=1e-7)


WIDE = {  # computed in fp64 where GPUs have no library
    **{name: getattr(torch, name) for name in ("expm1", "log2", "log10", "sin", "cos", "floor", "round")},
    **{name: getattr(torch, name) for name in ("pow", "fmod", "atan2", "copysign")},
}
SPECIAL = [0.0, -0.0, 0.5, -1.0, 1.0, 2.5, -3.0, 1e-40, 1e9, -3e38, 16777217.0, math.inf, -math.inf, math.nan]


def image(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.view(1, 1, -1, 1).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", WIDE)
def test_functions_of_fp32(name):
    """The exact number rounded, in one result of 1000 the adjacent one; zeros with their signs."""
    step = 399989
    some = torch.arange(0, 2**31 - 1, step, dtype=torch.int32).view(torch.float32)  # also large angles
    x = torch.cat([some, -some, torch.linspace(-20, 20, 5000), torch.tensor(SPECIAL).repeat(len(SPECIAL))])
    y = torch.cat(
        [some.flip(0), some, torch.linspace(7, -5, 5000), torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))]
    )
    y = [y] if name in ("pow", "fmod", "atan2", "copysign") else []
    value = program.Value(name, X, *[program.full("y")] * len(y))
    (got,) = stitch(Program(program.store(value)), image(x), list(map(image, y)))
    got, expected = got.flatten(), WIDE[name](x.double(), *(each.double() for each in y)).float()
    assert torch.equal(got.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(got.signbit()[numbers], expected.signbit()[numbers])
    apart = (got.view(torch.int32) - expected.view(torch.int32)).abs()[numbers]
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 1 / 1000
