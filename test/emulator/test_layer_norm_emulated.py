"""Layer norm's kernels on the CPU, against PyTorch in fp64."""

import pytest
import torch
import torch.nn.functional as F
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow

import emulator
from emulator import layer_norms

pytestmark = emulator.needed
EPS = 1e-6
HALF = torch.bfloat16


def check(rows, width, types, *, affine=(True, True), mean=0.0, of=(True, True), seed=0, **options):
    """types: of input, result and parameters. of: gradients of the input, and of the parameters."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size, dtype, offset=0.0):
        return (torch.randn(size, generator=generator) + offset).to(dtype)

    x, grad = random(rows, width, dtype=types[0], offset=mean), random(rows, width, dtype=types[1])
    given = [random(width, dtype=types[2]) if there else None for there in affine]
    exact = [each if each is None else each.double().requires_grad_() for each in (x, *given)]
    expected = F.layer_norm(exact[0], [width], *exact[1:], EPS)
    result, statistics = layer_norms.forward(x, *given, EPS, types[1], seed=seed, **options)
    assert_near(result, expected.detach())
    torch.testing.assert_close(statistics[0].double(), exact[0].detach().mean(1), rtol=1e-5, atol=1e-6)

    weight = exact[1] if affine[0] else torch.ones(width, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(width, dtype=torch.float64, requires_grad=True)
    same = F.layer_norm(exact[0], [width], weight, bias, EPS)
    wanted = torch.autograd.grad(same, [exact[0], weight, bias], grad.double())
    found = layer_norms.backward(
        grad, x, statistics, given[0], of_input=of[0], of_parameters=of[1], seed=seed, **options
    )
    for got, gradient, there in zip(found, wanted, (of[0], of[1], of[1]), strict=True):
        assert (got is not None) == there
        if there:
            assert_near(got, gradient, sums=rows, mean=mean)


def assert_near(got, exact, sums=1, mean=0.0):
    """Rounded once to the data type, and fp32's own errors: of sums, and of the mean that the forward left."""
    unit = torch.finfo(got.dtype).eps
    size = exact.abs().max().item() + 1e-3
    error = 4e-6 * sums**0.5 + mean * 2**-24
    torch.testing.assert_close(got.double(), exact, rtol=unit, atol=error * size)


# One lane a row and idle ones, each number of adjacent elements, several groups a lane, as many as there may be.
WIDTHS = [1, 12, 96, 767, 1024, *slow(2, 7, 20, 31, 40, 100, 192, 768, 1000)]


@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width):
    rows = 37 if width < 200 else 9
    check(rows, width, (HALF, HALF, torch.float32))
    check(rows, width, (torch.float32, HALF, torch.float32), warp=64, seed=1)


@pytest.mark.parametrize("rows", [1, 33, 1000, *slow(2, 31, 32, 200)])
@pytest.mark.parametrize("warp", emulator.WARPS)
def test_rows(rows, warp):
    """A part of a block, one, several parts, and further rows of a block."""
    check(rows, 96, (HALF, HALF, torch.float32), warp=warp)
    check(rows, 24, (torch.float32, torch.float32, torch.float32), warp=warp, multiprocessors=1)


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("result", [torch.float32, torch.float16, HALF])
@pytest.mark.parametrize("parameters", [torch.float32, torch.float16, HALF])
@pytest.mark.parametrize("input", [torch.float32, torch.float16, HALF])
def test_types(input, result, parameters):
    check(20, 48, (input, result, parameters))


@pytest.mark.parametrize("affine", [(False, False), (True, False), (False, True)])
def test_without_parameters(affine):
    check(20, 24, (HALF, HALF, torch.float32), affine=affine)


@pytest.mark.parametrize("of", [(True, False), (False, True)])
def test_some_gradients(of):
    check(50, 40, (HALF, HALF, torch.float32), of=of)


def test_large_mean():
    """The variance is that of differences: in fp32 sums of squares would leave nothing of it."""
    check(16, 96, (torch.float32, HALF, torch.float32), mean=4096.0)


def test_nan_and_infinity_stay_in_their_row():
    x = torch.randn(40, 96).to(HALF)
    x[3, 5], x[11, 95] = torch.inf, torch.nan
    result, statistics = layer_norms.forward(x, torch.ones(96), torch.zeros(96), EPS, HALF)
    assert result.isnan().all(1).nonzero().flatten().tolist() == [3, 11]
    assert result.isnan().any(1).nonzero().flatten().tolist() == [3, 11]
    of_x, of_weight, of_bias = layer_norms.backward(torch.ones_like(x), x, statistics, torch.ones(96))
    assert of_x.isnan().any(1).nonzero().flatten().tolist() == [3, 11]
    assert of_weight.isnan().all() and torch.equal(of_bias, torch.full([96], 40.0))


def test_constant_rows():
    x = torch.full([5, 96], 3.0, dtype=HALF)
    result, _ = layer_norms.forward(x, torch.ones(96), torch.full([96], 0.5), EPS, HALF)
    assert torch.equal(result, torch.full_like(x, 0.5))


def test_refusals():
    for rows, width, dtype, sentence in [
        (1, 1032, HALF, "its rows are too long"),
        (1, 772, HALF, "its rows are too long"),
        (0, 8, HALF, "there is nothing to compute"),
        (1, 0, HALF, "there is nothing to compute"),
        (2**31, 8, HALF, "there are too many rows"),
        (1, 8, torch.float64, "it computes in fp32"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            layer_norms.source(rows, width, (dtype, dtype, dtype))


@emulator.without_sanitizers
@settings(max_examples=examples(60))
@given(
    rows=st.integers(1, 300),
    width=st.integers(1, 128) | st.integers(1, 128).map(lambda width: 8 * width),
    types=st.tuples(*3 * [st.sampled_from([torch.float32, torch.float16, HALF])]),
    warp=st.sampled_from(emulator.WARPS),
    multiprocessors=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_any(rows, width, types, warp, multiprocessors, seed):
    check(rows, width, types, warp=warp, multiprocessors=multiprocessors, seed=seed)
