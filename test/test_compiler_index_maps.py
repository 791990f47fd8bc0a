"""Operators that the compiler reads through maps of their axes: pads, rolls, pools, upsamplings and their gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from against_eager import with_dynamo, without_dynamo
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import needs_aten, slow
from torch import Tensor

from torch_reformer.compiler.ir import through_maps

pytestmark = needs_aten
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
CHOOSING = {
    "roll": lambda x: torch.roll(x, (-2, 3), (2, 3)),
    "roll of all dimensions": lambda x: torch.roll(x, (1, 2, -3, 7), (0, 1, 2, 3)),
    "roll twice": lambda x: torch.roll(torch.roll(x, 1, -1), (2, 1), (2, 2)),
    "flip": lambda x: x.flip((1, 3)),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)),
    "pad by a number": lambda x: F.pad(x, (1, 0, 0, 2, 1, 1), value=1.1),
    "pad by infinity": lambda x: F.pad(x, (1, 1, 1, 1), value=-math.inf),
    "pad by the least number": lambda x: F.pad(x, (1, 1), value=torch.finfo(x.dtype).min),
    "crop and pad": lambda x: F.pad(x, (-1, 2, 3, -2)),
    "pad and roll": lambda x: torch.roll(F.pad(x, (0, 2, 0, 3)), (-3, -3), (2, 3)),
    "reflection": lambda x: F.pad(x, (1, 2, 2, 0), mode="reflect"),
    "replication": lambda x: F.pad(x, (1, 2, 2, 0), mode="replicate"),
    "slices": lambda x: x[:, :, 1:4],
    "every second": lambda x: x[:, :, ::2, 1:],
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, down": lambda x: F.interpolate(x, size=(3, 5)),
    "nearest-exact": lambda x: F.interpolate(x, size=(11, 3), mode="nearest-exact"),
}
SUMMING = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, size=(5, 13), mode="bilinear", align_corners=True),
    "bilinear x 8": lambda x: F.interpolate(x, scale_factor=8, mode="bilinear"),
    "bilinear, to one": lambda x: F.interpolate(x, size=(1, 1), mode="bilinear"),
    "bilinear, scale of its own": lambda x: F.interpolate(
        x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=False
    ),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "antialiased": lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", antialias=True),
    "bicubic, antialiased": lambda x: F.interpolate(x, size=(5, 4), mode="bicubic", antialias=True),
    "linear": lambda x: F.interpolate(x[:, 0], scale_factor=2, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "avg_pool, overlapping": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool, without pads": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x,
    "avg_pool, ceil": lambda x: F.avg_pool2d(x, (3, 2), (2, 2), (1, 0), ceil_mode=True),
    "avg_pool, divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    "avg_pool, line": lambda x: F.avg_pool1d(x[:, 0], 3, 2, 1),
    "avg_pool, volume": lambda x: F.avg_pool3d(x, 2, 2, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "nearest and back": lambda x: F.avg_pool2d(F.interpolate(x, scale_factor=2), 2),
}
# Calls that a plan may still have: copies that give a result the strides that PyTorch's has.
COPIES = {"reformer::_contiguous", "aten::alias"}


@pytest.fixture(autouse=True, scope="module")
def on_cpus():
    """Tensors are read through maps on CPUs, too."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(through_maps, "DEVICES", {"cuda", "cpu"})
        yield


def results(function, x: Tensor) -> list[Tensor]:
    """Result and gradient of a function."""
    x = x.detach().requires_grad_()
    result = function(x)
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, x, weights)]


def check(function, x: Tensor, exact: bool = False) -> list:
    """Compare result and gradient with those in fp64; returns the reports."""
    reports: list = []

    def whole(x: Tensor) -> Tensor:
        return function(torch.tanh(x)) * 2 + 1

    compiled = without_dynamo(whole, reports.append)
    actual, again, expected = results(compiled, x), results(compiled, x), results(whole, x.double())
    tolerance = {torch.bfloat16: 2e-2, torch.float32: 3e-6, torch.float64: 1e-12}[x.dtype]
    for one, other, right in zip(actual, again, expected, strict=True):
        largest = right.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
        torch.testing.assert_close(
            one.double(), right, rtol=tolerance, atol=tolerance * max(1, largest), equal_nan=True
        )
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    return reports


def calls(reports) -> set[str]:
    """Names of the calls of PyTorch's operators."""
    return {line.kind for report in reports for line in report.lines} - {"stitch", "conv"} - COPIES


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16, torch.float64)], ids=str)
@pytest.mark.parametrize("name", CHOOSING)
def test_choosing(name, dtype, layout):
    x = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    reports = check(CHOOSING[name], x.contiguous(memory_format=FORMATS[layout]))
    if dtype != torch.float64 or name not in ("pad by a number", "pad by the least number"):  # which fp32 does not hold
        assert not calls(reports)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", [(2, 3, 8, 9), *slow((1, 4, 7, 7))], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("name", SUMMING)
def test_summing(name, dtype, size, layout):
    if dtype == torch.bfloat16 and ("antialiased" in name or "volume" in name):
        pytest.skip("PyTorch has no such operator on CPUs")
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    reports = check(SUMMING[name], x.contiguous(memory_format=FORMATS[layout]))
    assert not calls(reports) or (name, layout) == ("bilinear, to one", "nchw")  # planes are not read along channels


@pytest.mark.parametrize("name", ["pad", "pad by infinity", "roll", "flip", "nearest"])
@pytest.mark.parametrize("layout", FORMATS)
def test_special_values(name, layout):
    """NaN and infinity stay where they are, and -0.0 keeps its sign."""
    x = torch.randn(2, 3, 8, 9).contiguous(memory_format=FORMATS[layout])
    x[0, 0, 0, 0], x[-1, -1, -1, -1], x[0, 0, 3, 3] = math.nan, math.inf, -0.0
    reports: list = []
    actual, expected = without_dynamo(CHOOSING[name], reports.append)(x), CHOOSING[name](x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(actual.signbit(), expected.signbit())


@pytest.mark.parametrize("name", ["avg_pool, overlapping", "avg_pool, without pads", "adaptive", "avg_pool, ceil"])
def test_special_values_of_sums(name):
    """A value that is in no window of an element does not reach it."""
    x = torch.randn(2, 3, 8, 9)
    x[0, 0, 0, 0], x[-1, -1, -1, -1] = math.nan, math.inf
    actual, expected = without_dynamo(SUMMING[name], lambda report: None)(x), SUMMING[name](x)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("size", [(1, 1, 1, 2), (2, 1, 1, 1), (1, 3, 1, 5), (3, 1, 4, 1)], ids=str)
@pytest.mark.parametrize(
    "name", ["pad", "roll", "flip", "replication", "nearest", "bilinear", "avg_pool, without pads"]
)
def test_axes_of_one_element(name, size):
    check((CHOOSING | SUMMING)[name], torch.randn(size))


@pytest.mark.parametrize("name", ["roll", "flip", "pad by a number"])
def test_truths(name):
    x = torch.randn(2, 3, 8, 9)
    function = lambda x: CHOOSING[name](x > 0)  # noqa: E731
    value = {"pad by a number": lambda x: F.pad(x > 0, (1, 0, 0, 2), value=True)}.get(name, function)
    reports: list = []
    assert torch.equal(without_dynamo(value, reports.append)(x), value(x)) and not calls(reports)


def test_many_axes():
    """A tensor is read through four maps at most: another operation reads the rest, or PyTorch flips all five."""
    x = torch.randn(3, 2, 4, 3, 5)
    for function in (lambda x: F.avg_pool3d(x.flip((0, 1, 2)), 2) + 1, lambda x: x.flip((0, 1, 2, 3, 4)) + 1):
        check(function, x)


def test_empty_and_whole_numbers():
    for x in (torch.empty(0, 3), torch.arange(12).view(3, 4)):
        function = lambda x: torch.roll(x, 1, 1)  # noqa: E731
        assert torch.equal(without_dynamo(function, lambda report: None)(x), function(x))


def test_windows_of_an_empty_tensor():
    x = torch.randn(3, 0, 7, 5, requires_grad=True)
    result = without_dynamo(lambda x: torch.roll(x.unfold(2, 3, 2), (-2, 0), (2, 3)), lambda report: None)(x)
    result.sum().backward()
    assert result.shape == (3, 0, 3, 5, 3) and x.grad.shape == x.shape


def test_flip_of_a_number():
    x = torch.tensor(2.0)
    assert torch.equal(without_dynamo(lambda x: x.flip(0) + 1, lambda report: None)(x), x + 1)


@pytest.mark.parametrize(
    "shifts, dims", [(1, 2), ((1, -3), (1, 3)), ((2, 7), (0, 1)), ((8, 1), (2, 0)), (1, ())], ids=str
)
@pytest.mark.parametrize("size", [(2, 7, 8, 9), (2, 3, 4, 5, 6)], ids=str)
def test_formats_of_rolls(size, shifts, dims):
    """On CPUs eager's rolls keep channels_last, but for those by nothing."""

    def function(x):
        return torch.roll(x, shifts, dims)

    x = torch.randn(size).contiguous(memory_format=torch.channels_last if len(size) == 4 else torch.channels_last_3d)
    torch.testing.assert_close(without_dynamo(function, lambda report: None)(x), function(x), check_stride=True)


def test_pad_by_nothing_is_a_copy():
    def function(x):
        return F.pad(x, (0, 0, 0, 0)), torch.roll(torch.roll(x, 1, 1), -1, 1)

    x = torch.randn(4, 8)
    compiled = with_dynamo(function, lambda report: None)
    for result in compiled(x):
        assert torch.equal(result, x) and result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_windows():
    """Swin's shifted windows: norm, roll and partition are one kernel's reads, and so is the way back."""

    def windows(x):
        b, h, w, c = x.shape
        x = torch.roll(F.pad(x, (0, 0, 0, 2, 0, 1)), (-3, -3), (1, 2))
        return x.view(b, 2, (h + 1) // 2, 3, (w + 2) // 3, c).permute(0, 1, 3, 2, 4, 5).contiguous() + 1

    x = torch.randn(2, 9, 10, 16, requires_grad=True)
    reports: list = []
    actual = without_dynamo(windows, reports.append)(x)
    expected = windows(x)
    torch.testing.assert_close(actual, expected)
    (line,) = reports[0].lines
    assert line.kind == "stitch" and line.read == x.numel() * 4
    grad = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(actual, x, grad), torch.autograd.grad(expected, x, grad))


def test_norms_read_through_maps():
    """A kernel that reduces rows reads a rolled tensor where it lies."""

    def function(x, weight):
        return F.layer_norm(torch.roll(x, (-1, 2), (1, 2)), (24,), weight) * 2

    tensors = torch.randn(2, 5, 6, 24), torch.randn(24)
    reports: list = []
    torch.testing.assert_close(without_dynamo(function, reports.append)(*tensors), function(*tensors))
    assert len(reports[0].lines) == 1


def test_casts_are_read_through():
    def function(x):
        return F.pad(x.float(), (1, 1), value=0.1) * 3

    x = torch.randn(4, 6, 8, dtype=torch.bfloat16)
    reports: list = []
    torch.testing.assert_close(without_dynamo(function, reports.append)(x), function(x))
    (line,) = reports[0].lines
    assert line.read == x.numel() * 2


def test_other_operations_are_not_read_through():
    """An element from nowhere is not the expression of one."""

    def function(x):
        row = x[0].bfloat16()
        return (
            F.pad(x.exp(), (1, 1)) * 3,
            F.pad(torch.ones_like(x), (2, 0)) + 1,
            F.pad(row.expand(4, 6).float(), (1, 1)) * 3,
            F.pad(row[0].expand(4, 6).float(), (1, 1)) * 3,
            F.pad((x > 0).float(), (0, 1), value=2.0) + 1,
        )

    x = torch.randn(4, 6).bfloat16().float()
    for actual, expected in zip(without_dynamo(function, lambda report: None)(x), function(x), strict=True):
        torch.testing.assert_close(actual, expected)


STEPS = {
    **CHOOSING,
    **{name: SUMMING[name] for name in ("bilinear", "avg_pool", "avg_pool, without pads", "adaptive", "bicubic")},
    "tanh": torch.tanh,
    "add": lambda x: x + x.mean(),
    "channel": lambda x: x * torch.arange(1.0, 1.0 + x.shape[1], dtype=x.dtype).view(-1, 1, 1),
    "softmax": lambda x: x.softmax(1),
    "permute": lambda x: x.permute(0, 1, 3, 2).contiguous(),
    "sum": lambda x: x - x.sum((0, 2, 3), keepdim=True) / 50,
}
del STEPS["pad by infinity"]


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=5),
    st.sampled_from(sorted(FORMATS)),
    st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(4, 8), st.integers(4, 8)),
)
def test_chains(names, layout, size):
    check_chain([STEPS[name] for name in names], layout, size)


def check_chain(steps, layout, size, relative=False):
    """Compare result and gradient of functions one after another with those in fp64. relative: to the largest."""

    def function(x):
        for step in steps:
            x = step(x) if min(x.shape[2:]) >= 4 and x.numel() < 20000 else x
        return x

    x = torch.randn(size, generator=torch.Generator().manual_seed(1)).contiguous(memory_format=FORMATS[layout])
    compiled = without_dynamo(function, lambda report: None)
    for actual, expected in zip(results(compiled, x), results(function, x.double()), strict=True):
        scale = max(1.0, expected.abs().max().item()) if relative else 1.0
        torch.testing.assert_close(actual.double(), expected, rtol=2e-4, atol=2e-4 * scale)


def test_windows_and_back():
    """The copy that puts windows together again is not made: the residual's kernel reads the windows."""

    def back(windows, x):
        b, h, w, c = x.shape
        image = windows.view(b, h // 3, w // 5, 3, 5, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(image, (3, 3), (1, 2)) * 2 + x

    tensors = torch.randn(12, 15, 16), torch.randn(2, 9, 10, 16)
    reports: list = []
    torch.testing.assert_close(without_dynamo(back, reports.append)(*tensors), back(*tensors))
    (line,) = reports[0].lines
    assert line.read == sum(each.numel() * 4 for each in tensors)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 0, 2, 3), (0, 1, 3, 2), (2, 1, 0, 3)])
@pytest.mark.parametrize("view", [(2, 3, 4, 8), (6, 4, 8), (2, 12, 8), (3, 8, 8)], ids=str)
def test_copies_are_read_through(order, view):
    def function(x):
        return torch.roll(x.permute(order).contiguous().view(view), (1, 2), (0, 1)) + 1

    sizes = [0, 0, 0, 0]
    for d, size in zip(order, (2, 3, 4, 8), strict=True):
        sizes[d] = size
    x = torch.randn(sizes)
    assert torch.equal(without_dynamo(function, lambda report: None)(x), function(x))


def test_gradients_of_channels():
    """Gradients of slices of images in channels_last are in channels_last, and one kernel adds them."""

    def function(x, weight):
        x = F.conv2d(x, weight)
        return (x[:, :8].exp() * 2, x[:, 8:].tanh())

    x = torch.randn(2, 16, 5, 5).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(16, 16, 1, 1) / 8
    weight = weight.contiguous(memory_format=torch.channels_last)
    grads = [torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    reports: list = []
    found = []
    for run in (without_dynamo(function, reports.append), function):
        operands = [each.clone().requires_grad_() for each in (x, weight)]
        found.append(torch.autograd.grad(run(*operands), operands, grads))
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    kinds = [line.kind for line in reports[-1].lines]
    assert "aten::slice_scatter" not in kinds and "reformer::_contiguous" not in kinds
