"""Assignments to slices, and repeated tensors, that the compiler computes by programs."""

import math

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten
from test_compiler_index_maps import FORMATS, calls, check, on_cpus  # noqa: F401  a fixture

from torch_reformer.compiler.ir import through_maps
from torch_reformer.compiler.ir.axis_map import AxisMap

pytestmark = needs_aten


def assigned(x, dim, start, end, step=1):
    y = x * 2
    return torch.slice_scatter(
        y, x.narrow(dim, 0, len(range(x.shape[dim])[start:end:step])).sin(), dim, start, end, step
    )


FUNCTIONS = {
    "channels": lambda x: assigned(x, 1, 1, None),
    "lines": lambda x: assigned(x, 2, 2, -1),
    "columns": lambda x: assigned(x, 3, 0, 4) * 2,
    "images": lambda x: assigned(x, 0, 1, 2),
    "all": lambda x: assigned(x, 2, None, None),
    "nothing": lambda x: assigned(x, 2, 4, 4),
    "a number": lambda x: torch.slice_scatter(x.exp(), torch.full_like(x[:, :1], -0.5), 1, 2, 3),
    "infinity": lambda x: torch.slice_scatter(x.exp(), torch.full_like(x[..., :3], -math.inf), 3, 2, 5).exp(),
    "into a number": lambda x: torch.slice_scatter(torch.ones_like(x), x[:, :, ::2].exp(), 2, 0, None, 2) * 3,
    "twice": lambda x: torch.slice_scatter(assigned(x, 2, 1, 3), x[:, :2] + 1, 1, 0, 2),
    "repeat": lambda x: x.repeat(2, 1, 3, 2) * 2,
    "repeat in more dimensions": lambda x: x[0, 0].repeat(3, 2, 1, 2),
    "tile": lambda x: x.tile(2, 1),
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, dtype, layout):
    x = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    check(FUNCTIONS[name], x.contiguous(memory_format=FORMATS[layout]))


def test_assignment_in_place():
    """One kernel computes the tensor, what replaces a slice, and what reads both; the input stays as it is."""

    def function(x, y):
        z = x * 2
        z[:, 2:6] = y[:, 2:6]
        z[:, :, 3:] = 7.0
        return z * 1

    x, y = torch.randn(4, 8, 6), torch.randn(4, 8, 6)
    x[0, 0, 0], x[1, 3, 1], y[0, 3, 0] = math.nan, math.nan, -0.0
    before, reports = x.clone(), []
    actual = without_dynamo(function, reports.append)(x, y)
    torch.testing.assert_close(actual, function(x, y), equal_nan=True)
    assert torch.equal(x.nan_to_num(9.0), before.nan_to_num(9.0)) and actual[0, 3, 0].signbit()
    assert [line.kind for line in reports[0].lines].count("stitch") == 1 and calls(reports) <= {"aten::arange"}


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_assignment_to_a_corner(layout):
    """What replaces a slice of a slice lies in memory without gaps, so programs write it."""

    def function(x, y):
        z = x * 2
        z[:, 1:, 2:] += y
        z[1:, :, :-1] = z[:-1, :, 1:].exp()
        return z.sin()

    x, y = torch.randn(4, 8, 6), torch.randn(4, 7, 4)
    x = x if layout == "contiguous" else x.mT.contiguous().mT
    x[0, 0, 0], x[1, 3, 1], y[0, 3, 0] = math.nan, math.nan, -0.0
    reports: list = []
    actual, expected = without_dynamo(function, reports.append)(x, y), function(x, y)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    assert actual.stride() == expected.stride()
    assert layout == "transposed" or calls(reports) <= {"aten::arange"}  # CPUs' programs read no transposed tensors


@pytest.mark.parametrize("requires_grad", [True, False])
def test_assignments_that_are_results(requires_grad):
    """They keep PyTorch's strides; the argument is changed by the last one."""

    def function(x, y):
        part = torch.slice_scatter(x[:, 1:, :4], y, 1, 2, 5)
        x.detach()[:, 2:, 1:] = 3.0
        return part, part.exp()

    x, y = torch.randn(4, 8, 6), torch.randn(4, 3, 4, requires_grad=requires_grad)
    mine, copied = x.clone(), x.clone()
    for one, other in zip(without_dynamo(function, lambda report: None)(mine, y), function(copied, y), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert torch.equal(mine, copied)


def test_truths_and_whole_numbers():
    def function(x, n):
        return (
            torch.slice_scatter(x > 0, x[:1] < 0, 0, 1, 2).logical_not(),
            torch.slice_scatter(n, n[:1] * 2, 0, 1, 2),
            (x > 1).repeat(2, 3),
            n.repeat(1, 2),
        )

    x, n = torch.randn(4, 6), torch.arange(24).view(4, 6)
    for actual, expected in zip(without_dynamo(function, lambda report: None)(x, n), function(x, n), strict=True):
        assert torch.equal(actual, expected)


def test_nothing_repeated():
    x = torch.randn(4, 6)
    for function in (lambda x: x.repeat(0, 2) + 1, lambda x: x[:0].repeat(2, 2) + 1, lambda x: x[0, 0].repeat(5) + 1):
        assert torch.equal(without_dynamo(function, lambda report: None)(x), function(x))


LONG = {
    "numbers": lambda x: torch.slice_scatter(x, torch.zeros_like(x[5:-7]), 0, 5, -7),
    "elements": lambda x: torch.slice_scatter(x, x[12:].neg(), 0, 5, -7),
    "roll": lambda x: torch.roll(x, 3),
    "flip": lambda x: x.flip(0),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "replication": lambda x: torch.nn.functional.pad(x[None], (1, 2), mode="replicate"),
    "repeat": lambda x: x.repeat(2),
    "every second": lambda x: x[::2].neg(),
}


@pytest.mark.parametrize("name", LONG)
def test_no_map_of_a_long_axis_is_made(name, monkeypatch):
    """It would take seconds, and gigabytes, only to be refused; and fp32 does not hold all indices of such an axis."""
    longest, of = 0, AxisMap.of

    def recorded(size, rows):
        nonlocal longest
        rows = list(rows)
        longest = max(longest, len(rows))
        return of(size, rows)

    monkeypatch.setattr(AxisMap, "of", recorded)
    x = torch.randn(4 * through_maps.MOST_POSITIONS, requires_grad=True)
    results = [function(x) for function in (without_dynamo(LONG[name], lambda report: None), LONG[name])]
    gradients = [torch.autograd.grad(result.square().sum(), x)[0] for result in results]
    assert torch.equal(*results) and torch.equal(*gradients)
    assert longest <= through_maps.MOST_POSITIONS


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_written_to_keeps_its_type(dtype, source):
    """PyTorch's decomposition of select_scatter promotes it with its source's."""
    x, values = (torch.randn(8, 5, 4) * 3).to(dtype), (torch.randn(8, 4) * 3).to(source)

    def function(x, values):
        return torch.select_scatter(x, values, 1, -2), torch.slice_scatter(x, values[:, None], 1, 1, 2)

    for actual, expected in zip(
        without_dynamo(function, lambda report: None)(x, values), function(x, values), strict=True
    ):
        assert actual.dtype == expected.dtype == dtype and torch.equal(actual, expected)


def test_assignment_to_no_elements():
    def function(x):
        y = x * 2
        y[:-1:2, -1:, 1::2, 6:] = 0.5
        return y * 3

    x = torch.randn(1, 1, 16, 33)
    assert torch.equal(without_dynamo(function, lambda report: None)(x), function(x))
