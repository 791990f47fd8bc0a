"""Sums over rows of concatenations are sums of the parts, by the kernels that compute or copy these."""

import importlib

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten
from torch import Tensor

sums_of_parts = importlib.import_module("torch_reformer.compiler.passes.sums_of_parts")  # its function has its name
pytestmark = needs_aten

BATCH, ROWS, WIDTH = 2, 10, 16


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch):
    monkeypatch.setattr(sums_of_parts, "DEVICES", {"cuda", "cpu"})
    monkeypatch.setattr(sums_of_parts, "_LEAST", 0)


def used(whole: Tensor) -> tuple[Tensor, Tensor]:
    """What a linear layer's backward computes of a gradient: a product, and the bias's gradient."""
    rows = whole.reshape(-1, whole.shape[-1])
    return rows.t() @ rows, rows.sum(0)


def heads(a, b, c):
    """Gradients of queries, keys and values that one tensor of three had."""
    each = [x.view(BATCH, ROWS, 2, -1).transpose(1, 2) for x in (a, b, c)]
    return used(torch.stack(each).permute(1, 3, 0, 2, 4).reshape(BATCH, ROWS, -1))


def heads_first(a, b, c):
    """The rows of each head are adjacent in memory."""
    each = [x.view(BATCH, ROWS, 2, -1).transpose(1, 2).contiguous().cumsum(2) for x in (a, b, c)]
    return used(torch.stack(each).permute(1, 3, 0, 2, 4).reshape(BATCH, ROWS, -1))


def kept(a, b, c):
    whole = torch.cat([a, b, c], -1).view(BATCH * ROWS, -1)
    return whole.t() @ whole, whole.sum(0, keepdim=True), whole


def twice(a, b, c):
    whole = torch.cat([a, b], -1)
    rows = whole.view(BATCH * ROWS, -1)
    return rows.t() @ rows, rows.sum(0), whole.sum((0, 1)) * 2 + rows.sum(0)


def one_part_twice(a, b, c):
    return used(torch.cat([a, b, a], -1))


CHANGED = {
    "columns": lambda *parts: used(torch.cat(parts, -1)),
    "large, unequal": lambda a, b, c: used(torch.cat([a, b[..., :4].cumsum(0), c], -1)),
    "large, computed": lambda a, b, c: used(torch.cat([a.tanh(), b[..., :4].cumsum(0) * 2, c.cumsum(0)], -1)),
    "large, slices": lambda a, b, c: used(torch.cat([(a * 2)[..., :4], b.cumsum(0), c.tanh()[..., 2:5]], -1)),
    **{function.__name__: function for function in (heads, heads_first, kept, twice, one_part_twice)},
}
LEFT = {
    "rows": lambda *parts: used(torch.cat(parts, 0)),
    "transposed": lambda *parts: used(torch.cat([part.flatten(0, 1).t() for part in parts], 1)),
    "of columns": lambda *parts: (torch.cat(parts, -1).view(BATCH * ROWS, -1).sum(1), used(torch.cat(parts, -1))[0]),
    "slices": lambda *parts: used(torch.cat([part[..., :4] for part in parts], -1)),  # a program chooses these
    "unequal": lambda a, b, c: used(torch.cat([a, b[..., :4].cumsum(0), c], -1)),
    "read by a program": lambda *parts: (*used(whole := torch.cat(parts, -1)), whole.exp()),
    "five": lambda a, b, c: used(torch.cat([a, b, c, a, b], -1)),
    "no rows": lambda *parts: used(torch.cat([part[:, :0] for part in parts], -1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [WIDTH, 6])
@pytest.mark.parametrize("name", [*CHANGED, *LEFT])
def test_values(name, width, dtype, monkeypatch):
    """Parts of 6 numbers begin where kernels cannot write them, so they are copied once more."""
    function = (CHANGED | LEFT)[name]
    if name.startswith("large"):
        monkeypatch.setattr(sums_of_parts, "_LEAST_OF_UNEQUAL", 0)
    found = []
    original = sums_of_parts._of_parts
    monkeypatch.setattr(sums_of_parts, "_of_parts", lambda *given: found.append(1) or original(*given))

    def whole(*inputs: Tensor) -> tuple[Tensor, ...]:
        """The parts are results of PyTorch's operators."""
        return function(*(torch.cumsum(each, 1) for each in inputs))

    torch.manual_seed(0)
    inputs = [torch.randn(BATCH, ROWS, width, dtype=torch.float64).to(dtype) for _ in range(3)]
    actual, expected = without_dynamo(whole, [].append)(*inputs), whole(*(each.double() for each in inputs))
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}[dtype]
    for one, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=tolerance, atol=tolerance * 60)
    # No kernel copies rows of three numbers in another order, and sums their columns.
    assert bool(found) == (name in CHANGED and (name, width) != ("heads_first", 6))


def test_one_kernel_writes_all():
    """The copies, in the concatenation, and their sums."""
    reports = []
    parts = [torch.randn(BATCH, 512, 256) for _ in range(3)]
    without_dynamo(lambda *each: used(torch.cat([torch.cumsum(x, 1) for x in each], -1)), reports.append)(*parts)
    (stitched,) = [line for line in reports[0].lines if line.kind == "stitch" and "sum" in line.operations]
    assert list(stitched.operations).count("sum") == 3
    assert list(stitched.operations).count("part") == 3


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_that_are_concatenated(dim):
    """Each stays memory of its own: results do not share it."""

    def function(a, b):
        one, other = (torch.cumsum(each, 0).sum(dim) for each in (a, b))
        return torch.cat([one, other]), one

    tensors = torch.randn(12, 8), torch.randn(12, 8)
    whole, one = without_dynamo(function, [].append)(*tensors)
    one.zero_()
    torch.testing.assert_close(whole, function(*tensors)[0])


def test_special_values():
    """NaN and infinities stay in their columns."""
    parts = [torch.randn(BATCH, ROWS, WIDTH) for _ in range(3)]
    parts[0][0, -1, 3], parts[1][0, -1, 5], parts[2][1, -1, 0] = torch.nan, torch.inf, -torch.inf

    def function(*parts: Tensor) -> Tensor:
        whole = torch.cat([torch.cumsum(each, 1) for each in parts], -1).view(BATCH * ROWS, -1)
        return (whole.t() @ whole).isnan().sum(), whole.sum(0)

    torch.testing.assert_close(without_dynamo(function, [].append)(*parts), function(*parts), equal_nan=True)
