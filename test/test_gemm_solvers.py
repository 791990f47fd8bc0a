"""The matrix-product solvers against PyTorch in fp64 on equal inputs."""

import itertools
import zlib

import pytest
import torch

import torch_reformer

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}

# n, c, h, w, k, r, s, pad, stride, dilation, groups
POINTWISE = [
    (4, 64, 14, 14, 32, 1, 1, (0, 0), (1, 1), (1, 1), 1),
    (3, 19, 7, 7, 50, 1, 1, (0, 0), (1, 1), (1, 1), 1),  # tiles across images, nothing a multiple of a vector
    (2, 1030, 5, 3, 17, 1, 1, (0, 0), (1, 1), (1, 1), 1),  # a sum in two parts
    (4, 40, 1, 1, 10, 1, 1, (0, 0), (1, 1), (1, 1), 1),
    (1, 1, 1, 1, 1, 1, 1, (0, 0), (1, 1), (1, 1), 1),
    (1, 1, 9, 1, 130, 1, 1, (0, 0), (1, 1), (1, 1), 1),
    (2, 12, 9, 10, 16, 1, 1, (0, 0), (2, 3), (1, 1), 1),
    (2, 12, 3, 2, 16, 1, 1, (0, 0), (5, 5), (1, 1), 1),  # one output position
    (2, 24, 6, 5, 36, 1, 1, (0, 0), (1, 1), (1, 1), 3),
    (2, 10, 6, 5, 20, 1, 1, (0, 0), (2, 1), (1, 1), 5),
    (1, 8, 70, 64, 8, 1, 1, (0, 0), (1, 1), (1, 1), 1),  # a weight gradient whose sum is split
]
GENERAL = [
    (4, 32, 14, 14, 40, 3, 3, (1, 1), (1, 1), (1, 1), 1),
    (3, 19, 7, 7, 50, 3, 3, (1, 1), (1, 1), (1, 1), 1),
    (2, 16, 17, 15, 24, 3, 3, (1, 1), (2, 2), (1, 1), 1),
    (2, 3, 33, 31, 20, 7, 7, (3, 3), (2, 2), (1, 1), 1),
    (2, 120, 6, 5, 9, 3, 3, (1, 1), (1, 1), (1, 1), 1),  # a sum in two parts
    (2, 5, 11, 13, 7, 2, 5, (3, 1), (3, 2), (2, 3), 1),  # asymmetric, and padding wider than the filter
    (1, 6, 12, 10, 8, 3, 2, (2, 0), (4, 3), (2, 3), 1),  # stride and dilation share factors: phases without taps
    (2, 4, 5, 4, 6, 1, 1, (1, 2), (1, 2), (1, 1), 1),
    (2, 6, 16, 16, 10, 4, 4, (0, 0), (4, 4), (1, 1), 1),
    (2, 12, 9, 8, 18, 3, 3, (1, 1), (1, 2), (1, 1), 3),
    (1, 10, 9, 8, 10, 3, 3, (1, 1), (1, 1), (1, 1), 10),
    (1, 1, 3, 3, 1, 3, 3, (0, 0), (1, 1), (1, 1), 1),
    (2, 3, 4, 5, 5, 3, 3, (1, 1), (9, 9), (1, 1), 1),  # one output position, and inputs that none reads
    (1, 4, 60, 64, 6, 3, 3, (1, 1), (1, 1), (1, 1), 1),  # a weight gradient whose sum is split
]
SOLVERS = {"gemm_1x1": POINTWISE, "implicit_gemm": GENERAL + POINTWISE}
CASES = [(solver, shape) for solver, shapes in SOLVERS.items() for shape in shapes]


def make(shape, dtype, layout):
    n, c, h, w, k, r, s, pad, stride, dilation, groups = shape
    generator = torch.Generator().manual_seed(zlib.crc32(repr(shape).encode()))
    tensors = [torch.randn(sizes, generator=generator) for sizes in [(n, c, h, w), (k, c // groups, r, s), (k,)]]
    x, weight, bias = (t.to(dtype) for t in tensors)
    x, weight = (t.contiguous(memory_format=LAYOUTS[layout]) for t in (x, weight))
    arguments = (stride, pad, dilation, groups)
    dy = torch.randn(torch.conv2d(x, weight, None, *arguments).shape, generator=generator).to(dtype)
    return x, weight, bias, dy.contiguous(memory_format=LAYOUTS[layout]), arguments


def results(x, weight, bias, dy, arguments):
    """Functions that run the forward, input-gradient and weight-gradient operators."""
    ops = torch.ops.reformer
    return {
        "F": lambda: ops.conv2d(x, weight, bias, *arguments),
        "B": lambda: ops.conv2d_input_grad(x.shape, weight, dy, *arguments),
        "W": lambda: ops.conv2d_weight_grad(weight.shape, x, dy, *arguments),
    }


def expected(x, weight, bias, dy, arguments, direction):
    x, weight, bias, dy = (t.double() for t in (x, weight, bias, dy))
    if direction == "F":
        return torch.conv2d(x, weight, bias, *arguments)
    stride, pad, dilation, groups = arguments
    mask = (direction == "B", direction == "W", False)
    grads = torch.ops.aten.convolution_backward(dy, x, weight, None, stride, pad, dilation, False, (0, 0), groups, mask)
    return grads[0] if direction == "B" else grads[1]


def check(got, want, terms):
    """Check the error of sums of `terms` products of standard normal numbers, in units of the result's rounding."""
    bits = {torch.float32: 2**-23, torch.float64: 2**-52, torch.float16: 2**-10, torch.bfloat16: 2**-7}[got.dtype]
    sum_bits = 2**-52 if got.dtype == torch.float64 else 2**-23
    bound = bits * want.abs() + 4 * sum_bits * terms + 2**-24 * (got.dtype == torch.float16)
    error = (got.double() - want).abs()
    assert (error <= bound).all(), f"largest excess {(error - bound).max():.3g}"


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("solver,shape", CASES, ids=lambda value: str(value).replace(" ", ""))
def test_matches_fp64(solver, shape, dtype, layout, direction, threads):
    inputs = make(shape, dtype, layout)
    x, weight, _, dy, _ = inputs
    want = expected(*inputs, direction)
    terms = {"F": weight[0].numel(), "B": weight.numel() // x.shape[1], "W": dy.numel() // dy.shape[1]}[direction]
    run = results(*inputs)[direction]
    with torch_reformer.config(force=solver):
        for count in (1, 2, 3):
            threads(count)
            got = run()
            check(got, want, terms)
            assert torch.equal(got, run()), "not the same result twice"


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_integers_are_exact(solver, layout):
    shape = SOLVERS[solver][1]
    inputs = [t.mul(3).round() if isinstance(t, torch.Tensor) else t for t in make(shape, torch.float32, layout)]
    with torch_reformer.config(force=solver):
        for direction, run in results(*inputs).items():
            assert torch.equal(run().double(), expected(*inputs, direction))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("layout,value", list(itertools.product(LAYOUTS, [float("nan"), float("inf")])))
def test_non_finite_propagates(solver, layout, value):
    x, weight, bias, dy, arguments = make(SOLVERS[solver][0], torch.float32, layout)
    x[0, 3, 2, 2] = value
    dy[1, 2, 3, 3] = value
    weight[5] = 0
    with torch_reformer.config(force=solver):
        for direction, run in results(x, weight, bias, dy, arguments).items():
            want = expected(x, weight, bias, dy, arguments, direction)
            assert torch.equal(torch.isfinite(run()), torch.isfinite(want))
