"""The direct convolution against PyTorch in fp64 on equal inputs."""

import pytest
import torch
from test_gemm_solvers import DTYPES, LAYOUTS, check, expected, make, results, threads  # noqa: F401

import torch_reformer

# n, c, h, w, k, r, s, pad, stride, dilation, groups
SHAPES = [
    (2, 3, 37, 35, 20, 3, 3, (1, 1), (2, 2), (1, 1), 1),  # first layers
    (2, 3, 20, 21, 9, 7, 7, (3, 3), (2, 2), (1, 1), 1),
    (2, 4, 19, 18, 16, 4, 4, (0, 0), (4, 4), (1, 1), 1),
    (1, 1, 40, 40, 5, 16, 16, (0, 0), (16, 16), (1, 1), 1),
    (2, 3, 9, 8, 6, 1, 1, (0, 0), (2, 2), (1, 1), 1),  # input_grad: positions that no tap reaches
    (1, 2, 24, 50, 33, 3, 3, (1, 1), (1, 1), (1, 1), 1),
    (2, 12, 13, 14, 20, 3, 3, (1, 1), (1, 1), (1, 1), 4),  # groups: 3 channels in, 5 out
    (2, 64, 9, 9, 64, 3, 3, (1, 1), (2, 2), (1, 1), 16),
    (3, 40, 7, 7, 40, 3, 3, (1, 1), (1, 1), (1, 1), 5),
    (2, 6, 11, 12, 6, 3, 3, (1, 1), (1, 1), (1, 1), 6),  # depthwise
    (2, 5, 17, 16, 7, 2, 5, (0, 3), (3, 1), (1, 2), 1),  # nothing symmetric
    (2, 5, 16, 17, 7, 5, 1, (6, 0), (1, 3), (2, 1), 1),  # more padding than the filter is high
    (1, 3, 6, 5, 4, 2, 2, (1, 0), (5, 4), (3, 2), 1),  # stride larger than the filter
    (1, 1, 1, 1, 1, 1, 1, (0, 0), (1, 1), (1, 1), 1),
    (2, 4, 1, 9, 3, 3, 3, (1, 1), (1, 1), (1, 1), 1),
    (1, 20, 9, 1, 10, 3, 3, (2, 2), (1, 2), (2, 2), 2),
    (1, 3, 90, 120, 8, 3, 3, (1, 1), (1, 1), (1, 1), 1),  # several strips
]


@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda value: str(value).replace(" ", ""))
def test_matches_fp64(shape, dtype, layout, direction, threads):  # noqa: F811
    inputs = make(shape, dtype, layout)
    x, weight, _, dy, _ = inputs
    want = expected(*inputs, direction)
    terms = {"F": weight[0].numel(), "B": weight.numel() // x.shape[1], "W": dy.numel() // dy.shape[1]}[direction]
    run = results(*inputs)[direction]
    with torch_reformer.config(force="direct"):
        for count in (1, 2, 3):
            threads(count)
            got = run()
            check(got, want, terms)
            assert torch.equal(got, run()), "not the same result twice"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES[:2] + SHAPES[6:8], ids=lambda value: str(value).replace(" ", ""))
def test_integers_are_exact(shape, layout):
    inputs = [t.mul(3).round() if isinstance(t, torch.Tensor) else t for t in make(shape, torch.float32, layout)]
    with torch_reformer.config(force="direct"):
        for direction, run in results(*inputs).items():
            assert torch.equal(run().double(), expected(*inputs, direction))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES[:1] + SHAPES[6:7], ids=lambda value: str(value).replace(" ", ""))
def test_non_finite_reaches_what_it_should(shape, layout, value):
    x, weight, bias, dy, arguments = make(shape, torch.float32, layout)
    x[0, 1, 5, 6] = value
    dy[1, 2, 3, 3] = value
    weight[1] = 0
    with torch_reformer.config(force="direct"):
        for direction, run in results(x, weight, bias, dy, arguments).items():
            want = expected(x, weight, bias, dy, arguments, direction)
            assert torch.equal(torch.isfinite(run()), torch.isfinite(want))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_non_finite_does_not_outlive_its_call(layout):
    """Packing buffers live on between calls, and weight_grad multiplies their values beside an image by zero."""
    with torch_reformer.config(force="direct"):
        for shape in (SHAPES[16], SHAPES[0]):
            x, weight, bias, dy, arguments = make(shape, torch.float32, layout)
            for run in results(x * float("nan"), weight, bias, dy * float("nan"), arguments).values():
                run()
        for shape in SHAPES:
            for run in results(*make(shape, torch.float32, layout)).values():
                assert torch.isfinite(run()).all()


def test_refusals():
    native = torch_reformer.runtime.native

    def refusal(key):
        candidates, _ = native.candidates(native.problem_parse(key), "cpu-avx2-4t")
        return next(candidate.reason for candidate in candidates if candidate.name == b"direct")

    assert refusal("3-224-224-7x7-64-112-112-4-3x3-2x2-1x1-0-NCHW-FP32-F") is None
    assert b"8-bit" in refusal("3-224-224-7x7-64-112-112-4-3x3-2x2-1x1-0-NCHW-INT8-F")
    assert b"128 input channels" in refusal("256-14-14-3x3-64-14-14-4-1x1-1x1-1x1-0-NCHW-FP32-F")
    assert b"cache" in refusal("128-14-9999-3x3-64-14-9999-4-1x1-1x1-1x1-0-NCHW-FP32-F")
