"""direct_depthwise against PyTorch in fp64: all directions, layouts and types, and NaN at padding."""

import pytest
import torch

import torch_reformer
from torch_reformer.runtime import native

ops = torch.ops.reformer
SOLVER = "direct_depthwise"
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LAYOUTS = [torch.contiguous_format, torch.channels_last]

# n, c, h, w, k, r, s, stride, padding, dilation
CASES = {
    "3x3": (4, 32, 14, 14, 32, 3, 3, (1, 1), (1, 1), (1, 1)),
    "3x3 wide plane, ragged channels": (2, 50, 57, 58, 50, 3, 3, (1, 1), (1, 1), (1, 1)),
    "3x3 stride 2": (2, 24, 15, 16, 24, 3, 3, (2, 2), (1, 1), (1, 1)),
    "3x3 stride 2, unpadded": (2, 33, 8, 8, 33, 3, 3, (2, 2), (0, 0), (1, 1)),
    "5x5, small plane": (2, 20, 7, 7, 20, 5, 5, (1, 1), (2, 2), (1, 1)),
    "5x5 stride 2": (3, 16, 14, 13, 16, 5, 5, (2, 2), (2, 2), (1, 1)),
    "7x7": (1, 18, 12, 10, 18, 7, 7, (1, 1), (3, 3), (1, 1)),
    "7x7 stride 2, multiplier": (1, 8, 12, 10, 16, 7, 7, (2, 2), (3, 3), (1, 1)),
    "9x9": (1, 17, 8, 8, 17, 9, 9, (1, 1), (4, 4), (1, 1)),
    "dilated": (2, 33, 12, 11, 33, 3, 3, (1, 1), (2, 2), (2, 2)),
    "all asymmetric": (1, 17, 5, 20, 34, 6, 8, (3, 2), (5, 7), (2, 3)),
    "stride and dilation share a factor": (2, 6, 19, 23, 12, 3, 5, (4, 6), (1, 2), (6, 4)),
    "wider than any kernel": (1, 2, 40, 33, 2, 11, 12, (4, 2), (5, 4), (1, 1)),
    "more padding than filter": (2, 3, 13, 13, 3, 3, 3, (1, 1), (4, 3), (1, 1)),
    "stride beyond the filter": (2, 16, 13, 13, 16, 1, 1, (3, 2), (0, 0), (1, 1)),
    "one pixel": (2, 5, 1, 1, 5, 1, 1, (1, 1), (0, 0), (1, 1)),
    "one channel": (1, 1, 9, 9, 5, 3, 3, (2, 1), (1, 0), (1, 1)),
    "one row": (1, 16, 1, 300, 16, 1, 5, (1, 1), (0, 2), (1, 1)),
}


@pytest.fixture(autouse=True)
def forced():
    threads = torch.get_num_threads()
    with torch_reformer.config(force=SOLVER):
        yield
    torch.set_num_threads(threads)


def tensors(case, dtype, layout, seed=0):
    n, c, h, w, k, r, s, stride, padding, dilation = case
    generator = torch.Generator().manual_seed(seed)

    def random(*sizes):
        return torch.randn(sizes, generator=generator).to(dtype).contiguous(memory_format=layout)

    x, weight, bias = random(n, c, h, w), random(k, 1, r, s), random(k, 1, 1, 1).flatten()
    y = torch.conv2d(x, weight, None, stride, padding, dilation, c)
    return x, weight, bias, random(*y.shape), (stride, padding, dilation, c)


def results(x, weight, bias, dy, args):
    return (
        ops.conv2d(x, weight, bias, *args),
        ops.conv2d_input_grad(x.shape, weight, dy, *args),
        ops.conv2d_weight_grad(weight.shape, x, dy, *args),
    )


def pytorch_results(x, weight, bias, dy, args):
    stride, padding, dilation, groups = args
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, weight, None, stride, padding, dilation, False, (0, 0), groups, (True, True, False)
    )
    return torch.conv2d(x, weight, bias, *args), dx, dw


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_matches_pytorch_in_fp64(case, dtype, layout):
    x, weight, bias, dy, args = tensors(case, dtype, layout)
    expected = pytorch_results(x.double(), weight.double(), bias.double(), dy.double(), args)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for got, want in zip(results(x, weight, bias, dy, args), expected, strict=True):
            assert got.dtype == dtype
            error = (got.double() - want).abs().max() / want.abs().max()
            assert error < TOLERANCE[dtype]


def test_repeats_bit_for_bit():
    inputs = tensors(CASES["3x3 wide plane, ragged channels"], torch.float32, torch.contiguous_format)
    for first, again in zip(results(*inputs), results(*inputs), strict=True):
        assert torch.equal(first, again)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("case", ["3x3", "3x3 stride 2", "5x5, small plane", "all asymmetric"])
@pytest.mark.parametrize("operand", ["x", "weight", "dy"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_infinity_and_nan_reach_what_they_touch_and_nothing_else(case, layout, operand, value):
    x, weight, bias, dy, args = tensors(CASES[case], torch.float32, layout)
    target = {"x": x, "weight": weight, "dy": dy}[operand]
    for index in ((0, 0, 0, 0), (-1, -1, -1, -1)):
        target[index] = value
    with torch_reformer.config(force="reference"):
        expected = results(x, weight, bias, dy, args)
    for got, want in zip(results(x, weight, bias, dy, args), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("64-14-14-3x3-64-14-14-4-1x1-1x1-1x1-0-NCHW-FP32-F_g2", "a group has more than one input channel"),
        ("64-14-14-3x3-64-14-14-4-1x1-1x1-1x1-0-NCHW-INT8-F_g64", "it has no 8-bit integers"),
        (
            "64-1-1000000-1x3-64-1-1000000-1-0x1-1x1-1x1-0-NCHW-FP32-F_g64",
            "its rows take more scratch memory than a thread keeps",
        ),
        ("64-14-14-3x3-64-14-14-4-1x1-1x1-1x1-0-NHWC-FP16-W_g64", None),
    ],
)
def test_says_what_it_cannot_do(key, sentence):
    candidates, _ = native.candidates(native.problem_parse(key), "cpu-avx2-2t")
    refusal = next(candidate.reason for candidate in candidates if candidate.name.decode() == SOLVER)
    assert (refusal.decode() if refusal else None) == sentence
