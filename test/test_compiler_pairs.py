"""Rotary embeddings of pairs: columns that are chosen within groups, products that are read through maps, and gradients
of slices that are concatenated; on CPUs by the rules of GPUs."""

import pytest
import torch
from gpu_rules import as_on_gpus
from marks import needs_aten

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.codegen.map_tables import MapTable, columns_within
from torch_reformer.compiler.ir.axis_map import AxisMap

pytestmark = needs_aten


def turned(x):
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def rotated(x, cos, sin):
    return x * cos + turned(x) * sin


def after_a_token(x, cos, sin):
    return torch.cat([x[:, :, :1], rotated(x[:, :, 1:], cos, sin)], 2)


def before_a_token(x, cos, sin):
    return torch.cat([rotated(x[:, :, :-1], cos, sin), x[:, :, -1:]], 2)


FUNCTIONS = {"all": (rotated, 0), "after a token": (after_a_token, 1), "before a token": (before_a_token, 1)}


def compare(function, *tensors):
    """Results and gradients are eager's, bit by bit; return the reports."""
    torch._dynamo.reset()
    reports, found = [], []
    for each in (torch.compile(function, backend=reformer, options={"report": reports.append}), function):
        x, *others = (tensor.clone() for tensor in tensors)
        x.requires_grad_()
        with as_on_gpus():
            result = each(x, *others)
            result.backward((torch.arange(result.numel()) % 5 - 2.0).view(result.shape))
        found.append((result.detach(), x.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())
    return reports


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("width", [16, 6, 2, 20])
def test_values(name, width):
    function, tokens = FUNCTIONS[name]
    x = torch.randint(-8, 9, (2, 3, 7 + tokens, width)).float()
    x[0, 0, 1, 0], x[0, 1, 2, 1], x[1, 0, 3, -1] = torch.nan, torch.inf, -0.0
    compare(function, x, *(torch.randint(-4, 5, (7, width)).float() for _ in range(2)))


def test_kernels():
    """One kernel, and a small one for the token; nothing else is stored."""
    x, cos, sin = torch.randn(2, 3, 65, 64), torch.randn(64, 64), torch.randn(64, 64)
    x, cos, sin = (tensor.round() for tensor in (x, cos, sin))
    reports = compare(after_a_token, x, cos, sin)
    assert [len(report.lines) for report in reports] == [2, 2]


@pytest.mark.parametrize("start", [0, 3, 5])
def test_slices_that_are_no_whole(start):
    """Overlapping gradients of slices, and such with a gap, are added up."""
    x = torch.randint(-8, 9, (2, 3, 8, 4)).float()
    compare(lambda x: torch.cat([x[:, :, :4] * 2, x[:, :, start:] * 3], 2), x)


def within(places, offset=0, stride=1):
    rows = AxisMap.choosing(1000, places).rows
    return columns_within(MapTable(rows, stride, 1, False, torch.device("cpu")), offset)


def test_groups_of_columns():
    assert within([1, 0, 3, 2, 5, 4, 7, 6]) == ((1, 0, 3, 2), 0)
    assert within([0, -1, 2, -1, 4, -1, 6, -1], offset=65) == ((1, None, 3, None), 1)
    assert within([0, -1, 2, -1, 4, -1, 6, -1], offset=64) == ((0, None, 2, None), 0)
    assert within([-1, 0, -1, 1, -1, 2, -1, 3], stride=2) == ((None, 0, None, 2), 0)
    assert within([3, 2, 1, 0, 7, 6, 5, 4]) == ((3, 2, 1, 0), 0)
    assert within([1, 0, 3, 2, 4, 5, 7, 6]) is None  # another one in the second group
    assert within([1, 0, 3, 2, 5, 4]) is None and within([-1] * 4) is None and within([0, 1, 2, 4] * 2) is None
