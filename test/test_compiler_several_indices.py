"""Rows by an index for each of several dimensions, and their gradient (decompositions/scatter_reduce.py)."""

import pytest
import torch
from marks import needs_aten
from test_compiler_scatter_reduce import MANY

from torch_reformer.compiler.decompositions import scatter_reduce

pytestmark = needs_aten


def of_both(x, batch, places):
    return x[batch, places] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_indices_of_several_dimensions(dtype, monkeypatch):
    """They are broadcast and some are negative; rows are added as often as they were read."""
    monkeypatch.setattr(scatter_reduce, "NAMES_DIMENSION", set())
    x = torch.randint(-4, 5, (64, 30, 8)).to(dtype).requires_grad_()
    batch, places = torch.arange(64)[:, None].flip(0) - 32, torch.randint(-30, 30, (64, MANY // 64 + 1))
    torch._dynamo.reset()
    reports: list = []
    compiled = torch.compile(of_both, backend="reformer", options={"report": reports.append})
    found, expected = compiled(x, batch, places), of_both(x, batch, places)
    assert torch.equal(found, expected)
    grad = torch.randint(-1, 2, found.shape).to(dtype)
    (one,), (other,) = torch.autograd.grad(found, x, grad), torch.autograd.grad(expected.double(), x, grad.double())
    torch.testing.assert_close(one, other, rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert {"aten::index.Tensor", "aten::index_put"}.isdisjoint(line.kind for each in reports for line in each.lines)


@pytest.mark.parametrize("wrong", [(64, 0), (0, 30), (0, -31)], ids=str)
def test_a_wrong_index_of_several(wrong):
    """PyTorch's error names the dimension."""
    x, batch, places = (
        torch.randn(64, 30, 8),
        torch.arange(64)[:, None],
        torch.zeros(64, MANY // 64 + 1, dtype=torch.int64),
    )
    batch[3], places[3, 5] = wrong
    torch._dynamo.reset()
    with pytest.raises(IndexError) as expected:
        of_both(x, batch, places)
    with pytest.raises(IndexError, match=str(expected.value)):
        torch.compile(of_both, backend="reformer")(x, batch, places)
