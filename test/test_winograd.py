"""Winograd convolution against PyTorch in fp64 on equal inputs."""

import contextlib

import pytest
import torch
from test_gemm_solvers import LAYOUTS, expected, make, results, threads  # noqa: F401

import torch_reformer
from torch_reformer.runtime import native

SOLVERS = ["winograd_2x4", "winograd_4x4"]

# n, c, h, w, k, padding; filters are 3x3
SHAPES = [
    (2, 64, 14, 14, 48, (1, 1)),
    (4, 70, 7, 7, 130, (1, 1)),  # few tiles: threads share the transformed input; two chunks, several panels
    (1, 96, 60, 33, 17, (1, 1)),  # many tiles: threads share the transformed filters
    (3, 5, 9, 70, 3, (1, 1)),  # several runs in a row of tiles; fewer channels than lanes
    (1, 33, 41, 150, 50, (1, 1)),
    (2, 16, 5, 6, 16, (0, 0)),
    (2, 20, 5, 4, 40, (2, 2)),
    (1, 24, 8, 3, 8, (0, 2)),
    (1, 8, 4, 9, 24, (2, 1)),
    (1, 1, 1, 1, 1, (1, 1)),
    (5, 3, 1, 2, 2, (2, 1)),
    (1, 2, 3, 3, 1, (0, 0)),
]


@pytest.fixture
def force():
    """Force a solver, whatever its accuracy, until the end of the test."""
    with contextlib.ExitStack() as stack:
        settings = dict(workspace_limit=1 << 30, reduced_accuracy=True)
        yield lambda name: stack.enter_context(torch_reformer.config(force=name, **settings))


def shape_of(n, c, h, w, k, padding):
    return (n, c, h, w, k, 3, 3, padding, (1, 1), (1, 1), 1)


def refusals(key):
    candidates, _ = native.candidates(native.problem_parse(key), None)
    reasons = {candidate.name.decode(): candidate.reason for candidate in candidates}
    return [reasons[name] and reasons[name].decode() for name in SOLVERS]


@pytest.mark.parametrize("direction", "FB")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda value: str(value).replace(" ", ""))
def test_matches_fp64(shape, solver, layout, direction, threads, force):  # noqa: F811
    inputs = make(shape_of(*shape), torch.float32, layout)
    want = expected(*inputs, direction)
    run = results(*inputs)[direction]
    force(solver)
    for count in (1, 2, 3):
        threads(count)
        got = run()
        assert (got.double() - want).abs().max() <= 4e-6 * want.abs().max()
        assert torch.equal(got, run()), "not the same result twice"


def errors(got, want):
    """The largest error and the root of the mean square."""
    error = got.double() - want
    return torch.stack([error.abs().max(), error.square().mean().sqrt()])


@pytest.mark.parametrize("distribution", ["normal", "clamped"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels,size", [(8, 40), (32, 32), (64, 28), (256, 14), (768, 8)])
def test_error_is_at_most_twice_pytorchs(channels, size, layout, distribution, threads, force):  # noqa: F811
    threads(2)  # with one, PyTorch may use another algorithm
    x, weight, _, dy, arguments = make(shape_of(4, channels, size, size, channels, (1, 1)), torch.float32, layout)
    if distribution == "clamped":  # as after an activation function
        x, dy = x.clamp_min(0), dy.clamp_min(0)
    inputs = (x, weight, None, dy, arguments)
    for direction in "FB":
        want = expected(x, weight, torch.zeros(channels), dy, arguments, direction)
        force("aten")
        pytorch = errors(results(*inputs)[direction](), want)
        key = f"{channels}-{size}-{size}-3x3-{channels}-{size}-{size}-4-1x1-1x1-1x1-0-{layout}-FP32-{direction}"
        with torch_reformer.config(reduced_accuracy=False):
            refused = refusals(key)
        for solver, refusal in zip(SOLVERS, refused, strict=True):
            if refusal is None:
                force(solver)
                ours = errors(results(*inputs)[direction](), want)
                assert (ours <= 2 * pytorch).all(), f"{solver} {direction}: {(ours / pytorch).tolist()} of PyTorch's"


def test_reduced_accuracy_must_be_allowed(force):
    nchw, nhwc = (f"64-28-28-3x3-64-28-28-4-1x1-1x1-1x1-0-{layout}-FP32-F" for layout in LAYOUTS)
    sentence = "its error may exceed twice PyTorch's, and the configuration does not allow that"
    assert refusals(nchw) == [None, sentence]
    assert refusals(nhwc) == [None, None]
    force("winograd_4x4")
    assert refusals(nchw) == [None, None]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_not_finite_stays_so(solver, layout, value, force):
    x, weight, bias, dy, arguments = make(shape_of(1, 20, 17, 18, 8, (1, 1)), torch.float32, layout)
    x[0, 3, 8, 9] = dy[0, 3, 8, 9] = value
    force(solver)
    for direction in "FB":
        want = expected(x, weight, bias, dy, arguments, direction)
        got = results(x, weight, bias, dy, arguments)[direction]()
        assert not (want.isfinite() < got.isfinite()).any()
        far = torch.ones_like(got, dtype=torch.bool)
        far[:, :, 4:13, 5:14] = False
        assert got[far].isfinite().all(), "it reached another tile"


@pytest.mark.parametrize(
    "key,sentence",
    [
        ("64-28-28-1x1-64-28-28-4-0x0-1x1-1x1-0-NCHW-FP32-F", "the filter is not 3x3"),
        ("64-28-28-3x3-64-14-14-4-1x1-2x2-1x1-0-NCHW-FP32-F", "the stride is not 1"),
        ("64-28-28-3x3-64-26-28-4-1x1-1x1-2x1-0-NCHW-FP32-F", "the dilation is not 1"),
        ("64-32-32-3x3-64-28-28-4-3x3-1x1-1x1-0-NCHW-FP32-B", "the padding is larger than 2"),
        ("64-28-28-3x3-64-28-28-4-1x1-1x1-1x1-0-NCHW-FP32-F_g2", "the convolution is grouped"),
        ("64-28-28-3x3-64-28-28-4-1x1-1x1-1x1-0-NCHW-FP64-F", "the data type is not fp32"),
        ("64-28-28-3x3-64-28-28-4-1x1-1x1-1x1-0-NCHW-FP32-W", "it has no weight gradient"),
    ],
)
def test_refusals(key, sentence):
    assert refusals(key) == [sentence, sentence]
