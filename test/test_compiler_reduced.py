"""Reductions over any dimensions of tensors in any order are programs (compiler/lowering/reduced.py)."""

import itertools
import math

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten, slow
from torch import Tensor

from torch_reformer.compiler.ir import through_maps

pytestmark = needs_aten
REDUCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "any": lambda x, *args: (x > 1.5).any(*args),
    "all": lambda x, *args: (x > -1.5).all(*args),
    "count": lambda x, *args: (x > 0).sum(*args, dtype=x.dtype),
    "var": lambda x, dims, kept: torch.var(x, dims, correction=0, keepdim=kept),
    "std": lambda x, dims, kept: torch.sqrt(torch.var(x, dims, keepdim=kept) + 1),
    "softmax": lambda x, dims, kept: x.softmax(dims[0]),
}
# Sizes, their order in memory, outermost first, and the reduced dimensions.
SHAPES = {
    "radix": ((3, 2, 4, 5, 6), (0, 3, 4, 1, 2), (1,)),
    "radix, contiguous": ((3, 2, 4, 5, 6), (0, 1, 2, 3, 4), (1,)),
    "radix and positions": ((3, 2, 4, 5, 6), (0, 3, 4, 1, 2), (1, 3, 4)),
    "heads inside": ((2, 3, 7, 5), (0, 2, 3, 1), (3,)),
    "heads outside": ((2, 3, 20, 12), (0, 2, 1, 3), (-1,)),
    "groups of channels": ((2, 3, 4, 5, 6), (0, 3, 4, 1, 2), (2, 3, 4)),
    "every second": ((4, 5, 6, 7), (0, 1, 2, 3), (1, 3)),
    "every second, first": ((4, 5, 6, 7), (0, 1, 2, 3), (0, 2)),
    "last of channels_last": ((6, 4, 3, 3), (0, 2, 3, 1), (0,)),
    "weights of channels_last": ((6, 4, 3, 3), (0, 2, 3, 1), (1, 2, 3)),
    "ones": ((1, 4, 1, 5), (0, 1, 2, 3), (0, 2)),
    "ones and few": ((1, 2, 3, 5), (0, 1, 2, 3), (0, 2)),
}
FAST = ("radix", "radix and positions", "heads inside", "groups of channels", "ones and few")


@pytest.fixture(autouse=True, scope="module")
def on_cpus():
    """Sums of more terms are read through maps on CPUs, too."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(through_maps, "DEVICES", {"cuda", "cpu"})
        yield


def tensor(name: str, dtype=torch.float32) -> tuple[Tensor, tuple[int, ...]]:
    """A tensor of these sizes, in their order, and the reduced dimensions."""
    sizes, order, dims = SHAPES[name]
    x = torch.randn([sizes[d] for d in order], generator=torch.Generator().manual_seed(0)).to(dtype)
    return x.permute([order.index(d) for d in range(len(order))]), dims


def outcome(function, x: Tensor) -> list[Tensor]:
    """Result and gradient."""
    x = x.detach().requires_grad_()
    result = function(x)
    if not result.requires_grad:
        return [result]
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, x, weights)]


def check(function, x: Tensor, tolerance: float = 3e-6) -> set[str]:
    """Compare with fp64 of eager; returns the kinds of kernels and calls."""
    reports: list = []
    actual, expected = outcome(without_dynamo(function, reports.append), x), outcome(function, x.double())
    eager = function(x)
    assert actual[0].stride() == eager.stride() and actual[0].dtype == eager.dtype
    for one, other in zip(actual, expected, strict=True):
        largest = other.double().nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1).item()
        torch.testing.assert_close(
            one.double(), other.double(), rtol=tolerance, atol=tolerance * largest, equal_nan=True
        )
    return {line.kind for report in reports for line in report.lines}


@pytest.mark.parametrize("kept", [False, *slow(True)])
@pytest.mark.parametrize("name", [*FAST, *slow(*(each for each in SHAPES if each not in FAST))])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(reduction, name, kept):
    x, dims = tensor(name)

    def function(x):
        return REDUCTIONS[reduction](torch.tanh(x) * 2, dims, kept)

    found = check(function, x)
    if name != "ones" or reduction not in ("var", "std"):  # variances of one element stay calls
        assert found <= {"stitch", "reformer::_contiguous"}


@pytest.mark.parametrize("name", [*slow(*SHAPES)])
@pytest.mark.parametrize("reduction", ["sum", "mean", "amax", "var"])
def test_16_bits(reduction, name):
    x, dims = tensor(name, torch.bfloat16)
    check(lambda x: REDUCTIONS[reduction](x * 2, dims, False), x, 0.02)


@pytest.mark.parametrize(("reduction", "length"), [("sum", 9), ("amax", 8), ("any", 8)])
def test_each_set_of_dimensions(reduction, length):
    """Tensors whose dimensions all have several elements; more than 8 terms are read through a map."""
    x = torch.randn(2, 3, length, 4).permute(0, 3, 1, 2)
    for count in (1, 2, 3):
        for dims in itertools.combinations(range(4), count):
            function = lambda x, dims=dims: REDUCTIONS[reduction](x * 2, dims, False)  # noqa: E731
            assert check(function, x) <= {"stitch", "reformer::_contiguous"}


@pytest.mark.parametrize("name", ["radix", "heads inside", "every second", "ones and few"])
def test_special_values(name):
    """NaN and infinity reach only the results of their elements, and sums of -0.0 are 0."""
    x, dims = tensor(name)
    x = torch.where(x > 0.5, -0.0, x)
    x[..., 0, 1], x[..., 1, 0], x[0, ..., 2] = math.nan, math.inf, -0.0
    for reduction in ("sum", "mean", "amax", "amin", "any", "var"):
        function = lambda x, reduction=reduction: REDUCTIONS[reduction](x, dims, False)  # noqa: E731
        actual, expected = without_dynamo(function, lambda _: None)(x), function(x)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    zeros = torch.full_like(x, -0.0)
    assert not without_dynamo(lambda x: x.sum(dims), lambda _: None)(zeros).signbit().any()


@pytest.mark.parametrize("size", [(0, 2, 3), (3, 0, 2), (2, 3, 0), (1, 1, 1), (3, 1, 4)], ids=str)
def test_nothing_and_one_element(size):
    x = torch.randn(size)
    for reduction, dims in itertools.product(("sum", "mean", "any", "var"), ((1,), (0, 2), (-2,), (0, 1, 2))):
        function = lambda x, reduction=reduction, dims=dims: REDUCTIONS[reduction](x, dims, False)  # noqa: E731
        torch.testing.assert_close(without_dynamo(function, lambda _: None)(x), function(x), equal_nan=True)


@pytest.mark.parametrize("part", [lambda x: x[:, 1:, :5], lambda x: x[1:2], lambda x: x[:, :1].expand(-1, 4, -1, -1)])
def test_parts(part):
    """Tensors with gaps, and broadcast ones, are reduced as in eager mode."""
    x = torch.randn(3, 4, 6, 8)
    for reduction, dims in itertools.product(("sum", "amax", "var"), ((0,), (1,), (0, 1), (1, 3), (2, 3))):
        if (reduction, part(x).shape[0], dims) != ("var", 1, (0,)):
            reports: list = []
            function = lambda x, call=(REDUCTIONS[reduction], dims): call[0](part(x), call[1], True)  # noqa: E731
            torch.testing.assert_close(without_dynamo(function, reports.append)(x), function(x))
            assert {line.kind for line in reports[0].lines} <= {"stitch", "reformer::_contiguous"}


def test_a_result_is_no_view():
    x = torch.randn(3, 1, 4)
    for function in (lambda x: x.sum(1, keepdim=True), lambda x: x.amax(1, keepdim=True)):
        result = without_dynamo(function, lambda _: None)(x)
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def split_attention(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """ResNeSt's, of a radix of 2, without convolutions."""
    x = (x * 2).relu()
    parts = x.view(x.shape[0], 2, x.shape[1] // 2, *x.shape[2:])
    attention = (parts.sum(1).mean((2, 3)) @ scale).view(x.shape[0], 2, -1, 1, 1).softmax(1)
    return ((parts * attention).sum(1) * weight).mean()


@pytest.mark.parametrize("channels", [16, 1024])
def test_split_attention(channels):
    """Means come with the kernel that computes the image, and, with few channels, the weighted sum with the loss."""
    x = torch.randn(3, channels, 20, 20).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(3, channels // 2, 20, 20).contiguous(memory_format=torch.channels_last)
    scale, reports, outcomes = torch.randn(channels // 2, channels) / channels**0.5, [], []
    compiled = without_dynamo(split_attention, reports.append)
    for run, dtype in ((compiled, torch.float32), (split_attention, torch.float64)):
        leaves = [each.to(dtype).detach().requires_grad_() for each in (x, scale)]
        result = run(*leaves, weight.to(dtype))
        outcomes.append([result.detach(), *torch.autograd.grad(result, leaves)])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-7)
    forward, backward = reports
    assert {line.kind for line in forward.lines} == {"stitch", "aten::mm"}
    moved = [line for line in forward.lines if line.read + line.written >= x.nbytes]
    assert moved[0].written < x.nbytes / 100  # the means, no sum of the parts
    if channels > 16:
        return
    assert len(moved) == 2
    assert sum(line.read + line.written for line in moved) < 3.8 * x.nbytes  # x, relu(x) twice, the weight
    assert not {line.kind for line in backward.lines} - {"stitch", "aten::mm", "reformer::_contiguous"}
    assert sum(line.read + line.written for line in backward.lines) < 7 * x.nbytes


@pytest.mark.parametrize("dims", [(2, 3), (0,), (0, 1, 2, 3)])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("error:an internal error")
def test_sums_of_large_sums_of_terms(dtype, layout, images, dims):
    """The sum over the other dimensions comes first; that of the terms, which nothing reads then, is gone."""

    def function(x):
        return (x * 2).relu().view(images, 3, 512, 4, 5).sum(1).sum(dims)

    x = torch.randn(images, 1536, 4, 5).to(dtype).contiguous(memory_format=layout)
    x[0, 0, 0, 0], x[0, 1, 0, 0], x[0, 2, 0, 0] = torch.nan, torch.inf, -torch.inf
    torch._dynamo.reset()
    actual, expected = torch.compile(function, backend="reformer")(x), function(x.double())
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_large_terms(dtype):
    """A maximum over four parts of an input is computed by what reads it; a sum of what a kernel computes by that."""

    def pooled(x: Tensor, y: Tensor) -> Tensor:
        x = x.view(2, 4, 100, 100)
        return x.amax(1) + y, (x * 2).exp().sum(1)

    x, y, reports = torch.randn(2, 400, 100).to(dtype), torch.randn(2, 100, 100), []
    x[0, 0], x[1, 1], x[0, 1, 0] = torch.nan, -torch.inf, torch.inf
    result, expected = without_dynamo(pooled, reports.append)(x, y), pooled(x, y)
    torch.testing.assert_close(result, expected, equal_nan=True)
    (lines,) = [report.lines for report in reports]
    assert [line.written for line in lines if line.operations[0].startswith("max")] == [y.nbytes]


def test_variances_in_steps():
    """A large mean costs no accuracy."""
    x = (torch.randn(2, 12, 5, 6) + 1000).contiguous(memory_format=torch.channels_last)
    function = lambda x: torch.var(x.view(2, 3, 4, 5, 6), (2, 3, 4))  # noqa: E731
    reports: list = []
    actual = without_dynamo(function, reports.append)(x)
    torch.testing.assert_close(actual.double(), function(x.double()), rtol=1e-4, atol=0)
    assert {line.kind for line in reports[0].lines} == {"stitch"}


@pytest.mark.parametrize("size", [3, 300, 5000])
@pytest.mark.parametrize(
    "function",
    [lambda x: (x > 0).float().sum(0), lambda x: (x > 0).float().amax(0), lambda x: torch.logsumexp(x > 0, 0)],
)
def test_masks_of_fp64(function, size):
    """A reduction in fp32 of what a comparison in fp64 gives stays in fp32."""
    x = torch.randn(size, dtype=torch.float64)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend="reformer")(x), function(x))


@pytest.mark.parametrize("lines", [1, 2, 9, 70])
@pytest.mark.parametrize("width", [1, 3, 15, 16, 17, 49, 63, 64, 65, 130, 256, 257, 1030, 2049, 4097])
@pytest.mark.parametrize("dim", [0, 1])
def test_vectors_and_blocks(lines, width, dim):
    """Sizes around those of a CPU's vectors, of the spans of columns, and of blocks (csrc/cpu/programs)."""
    x = torch.randn(lines, width, generator=torch.Generator().manual_seed(0)) + 100

    def function(x):
        y = x * 0.5
        return y.sum(dim), y.amax(dim), torch.var_mean(y, dim, correction=0)

    sums, maxima, (variances, means) = without_dynamo(function, lambda report: None)(x)
    expected = function(x.double())
    torch.testing.assert_close(sums.double(), expected[0], rtol=3e-7, atol=0)
    assert torch.equal(maxima, function(x)[1])
    torch.testing.assert_close(variances.double(), expected[2][0], rtol=2e-6, atol=1e-10)
    torch.testing.assert_close(means.double(), expected[2][1], rtol=3e-7, atol=0)


@pytest.mark.parametrize("width", [1, 5, 17, 49, 64, 300, 2500])
@pytest.mark.parametrize("dim", [0, 1])
def test_one_nan(width, dim):
    """At each place of a vector, it is in the sum and the maximum of its line or column, and nowhere else."""
    compiled = without_dynamo(lambda x: ((x * 0.5).sum(dim), (x * 0.5).amax(dim)), lambda report: None)
    for place in {0, width // 2, width - 1}:
        x = torch.full((11, width), -float("inf"))
        x[7, place] = math.nan
        for result in compiled(x):
            expected = torch.full_like(result, -float("inf"))
            expected[7 if dim else place] = math.nan
            torch.testing.assert_close(result, expected, equal_nan=True)
