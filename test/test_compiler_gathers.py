"""Gathers and scattered additions by an index that is equal along all later dimensions, as rows of many tables."""

import pytest
import torch
from marks import needs_aten
from test_compiler_scatter_reduce import MANY, On

from torch_reformer.compiler.decompositions import scatter_reduce


def kept(x, index):
    """Tokens that a masked autoencoder keeps."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def scattered(x, index):
    rows = x[:, : index.shape[1]] * 2
    return (x * 0.5).scatter_add(1, index[..., None].expand_as(rows), rows)


@needs_aten
@pytest.mark.parametrize("function", [kept, scattered])
@pytest.mark.parametrize("is_scanned", [False, True])
def test_rows_of_many_tables(function, is_scanned, monkeypatch):
    """Indices along a later dimension, some of them equal, in the numbers from which on they are sorted on CPUs."""
    monkeypatch.setattr(scatter_reduce, "_is_scanned", lambda *_: is_scanned)
    torch._dynamo.reset()
    x = torch.randint(-4, 5, (8, 3000, 6)).double().requires_grad_()
    index = torch.randint(3000, (8, MANY // 8 + 5))
    index[3] = 17
    with torch.no_grad():
        x[3, 17, 2], x[5, 5, 5] = torch.nan, torch.inf
    narrow, found = x.detach().float().requires_grad_(), []
    result = torch.compile(function, backend="reformer", options={"report": found.append})(narrow, index)
    expected = function(x, index)
    torch.testing.assert_close(result.double(), expected, equal_nan=True, rtol=1e-5, atol=1e-5)
    grad = torch.randint(-4, 5, result.shape).float()
    result.backward(grad)
    expected.backward(grad.double())
    torch.testing.assert_close(narrow.grad.double(), x.grad, equal_nan=True, rtol=1e-5, atol=1e-5)
    lines = [line.kind for report in found for line in report.lines]
    assert "reformer::_row_numbers" in lines and not {"aten::gather", "aten::scatter_add"} & {*lines}


@needs_aten
@pytest.mark.parametrize("wrong", [-1, 3000])
@pytest.mark.parametrize("function", [kept, scattered])
def test_indices_of_another_table(function, wrong):
    """A number beyond its own table's rows is an error, though the next table has such a row."""
    torch._dynamo.reset()
    x, index = torch.randn(8, 3000, 2), torch.zeros(8, MANY // 8, dtype=torch.int64)
    index[3, 4] = wrong
    messages = []
    for called in (function, torch.compile(function, backend="reformer")):
        with pytest.raises(RuntimeError) as error:
            called(x, index)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@needs_aten
@pytest.mark.parametrize("sizes", [(0, 5, 3), (2, 0, 3), (2, 5, 0), (1, 1, 1), (3, 1, 2)], ids=str)
def test_small_tables(sizes):
    torch._dynamo.reset()
    x = torch.randn(sizes, requires_grad=True)
    index = torch.zeros(sizes[0], 4 if x.shape[1] else 0, dtype=torch.int64)
    result = torch.compile(kept, backend="reformer")(x, index)
    assert torch.equal(result, kept(x, index))
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (result, kept(x, index))))


@needs_aten
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_single_elements(dim):
    """An index of each element has no rows."""
    torch._dynamo.reset()
    x, index = torch.randn(300, 70), torch.randint(60, (300, 70))
    assert torch.equal(torch.compile(torch.gather, backend="reformer")(x, dim, index), x.gather(dim, index))


def test_rows_of_tables():
    x, index = torch.empty(4, 5, 6, 7), torch.zeros(4, 9, 1, 1, dtype=torch.int64)
    assert scatter_reduce._of_rows(x, 1, index.expand(4, 9, 6, 7)).shape == (4, 9)
    assert scatter_reduce._of_rows(x, -3, index.expand(4, 9, 6, 7)).shape == (4, 9)
    assert scatter_reduce._of_rows(x, 1, index.expand(4, 9, 6, 6)) is None  # not all columns
    assert scatter_reduce._of_rows(x, 1, index[:3].expand(3, 9, 6, 7)) is None  # not all tables
    assert scatter_reduce._of_rows(x, 1, index.expand(4, 9, 6, 7).contiguous()) is None
    assert scatter_reduce._of_rows(x, 2, index.view(4, 1, 9, 1).expand(4, 5, 9, 7)) is None  # on a CPU
    on_gpu = x.as_subclass(On)
    assert scatter_reduce._of_rows(on_gpu, 2, index.view(4, 1, 9, 1).expand(4, 5, 9, 7)).shape == (4, 5, 9)
