"""Gathers, such as embeddings, that are fused into groups of compiled graphs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import needs_aten
from torch import nn

import torch_reformer  # noqa: F401  registers the backend

LOOK_UPS = {"aten::embedding", "aten::index_select"}


class Embeddings(nn.Module):
    """BERT's embeddings of words, positions and token types, with layer norm."""

    def __init__(self, columns: int):
        super().__init__()
        self.words, self.places = nn.Embedding(50, columns, padding_idx=0), nn.Embedding(32, columns)
        self.kinds, self.norm = nn.Embedding(2, columns), nn.LayerNorm(columns)
        self.register_buffer("numbers", torch.arange(32)[None])
        self.register_buffer("zeros", torch.zeros(1, 32, dtype=torch.int64))

    def forward(self, ids):
        images, length = ids.shape
        kinds = self.kinds(self.zeros[:, :length].expand(images, length))
        return self.norm(self.words(ids) + kinds + self.places(self.numbers[:, :length]))


def norm_of(ids, table):
    return F.layer_norm(F.embedding(ids, table), table.shape[1:])


def compiled(function, reports=None):
    torch._dynamo.reset()
    options = None if reports is None else {"report": reports.append}
    return torch.compile(function, backend="reformer", options=options)


def kinds_of(report) -> set[str]:
    return {line.kind for line in report.lines}


def check(function, *args, precise=1e-5, looks_up=True):
    """Compare results and gradients with PyTorch's; the forward has no gather call unless ``looks_up`` is False."""
    reports, found = [], []
    for run in (compiled(function, reports), function):
        given = [each.clone().requires_grad_() if each.is_floating_point() else each for each in args]
        result = run(*given)
        weight = torch.linspace(-1, 1, max(result.numel(), 1), dtype=result.dtype)[: result.numel()].view(result.shape)
        wanted = [each for each in given if each.requires_grad]
        found.append([result, *torch.autograd.grad((result * weight).sum(), wanted, allow_unused=True)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=precise, atol=precise)
    assert all(kinds_of(report).isdisjoint(LOOK_UPS) == looks_up for report in reports[:1])
    return reports


@needs_aten
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("size", [(40,), (3, 7), (2, 3, 5), (1,)], ids=str)
def test_layer_norm_of_rows(size, dtype):
    reports = check(norm_of, torch.randint(0, 9, size).to(dtype), torch.randn(9, 24))
    assert all(kinds_of(report).isdisjoint(LOOK_UPS) for report in reports)


@needs_aten
@pytest.mark.parametrize("size", [(0,), (3, 0), ()], ids=str)
def test_few_rows(size):
    check(norm_of, torch.zeros(size, dtype=torch.int64), torch.randn(9, 24), looks_up=size == ())


@needs_aten
@pytest.mark.parametrize("columns", [1, 2])
def test_few_columns(columns):
    check(norm_of, torch.randint(0, 9, (70,)), torch.randn(9, columns), looks_up=columns > 1, precise=1e-3)


@needs_aten
def test_index_in_another_order():
    ids = torch.randint(0, 9, (7, 6, 2))
    check(norm_of, ids[..., 0].t(), torch.randn(9, 24))
    check(norm_of, ids[..., 1], torch.randn(9, 24))


@needs_aten
def test_table_in_another_order():
    """Rows of adjacent elements are gathered in the kernel, others by a call."""
    check(lambda ids, table: norm_of(ids, table[:, :24]), torch.randint(0, 9, (70,)), torch.randn(9, 40))
    check(lambda ids, table: norm_of(ids, table.t()), torch.randint(0, 9, (70,)), torch.randn(24, 9), looks_up=False)


@needs_aten
def test_rows_that_are_selected():
    def function(x, ids):
        return (x.index_select(0, ids) * 2).tanh()

    check(function, torch.randn(9, 3, 8), torch.randint(0, 9, (70,)))


@needs_aten
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_sum_of_three(dtype, autocast):
    torch.manual_seed(0)
    model, ids, reports = Embeddings(48).to(dtype), torch.randint(0, 50, (4, 17)), []
    found = []
    exact = copy.deepcopy(model).double()  # PyTorch's own sums in bf16 are off by as much as its threads are few
    for run, of in ((compiled(model, reports), model), (exact, exact)):
        with torch.autocast("cpu", torch.bfloat16, autocast):
            result = run(ids)
            grads = torch.autograd.grad((result * torch.linspace(-1, 1, 48)).sum(), [*of.parameters()])
        found.append([result, *grads])
    precise = 1e-5 if dtype == torch.float32 and not autocast else 0.03
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=precise, atol=precise)
    forward, backward = reports
    assert [line.kind for line in forward.lines] == ["stitch"]
    assert "aten::embedding" not in kinds_of(backward)


@needs_aten
def test_what_a_call_needs_is_looked_up_by_a_call():
    def function(ids, table, weight):
        rows = F.embedding(ids, table)
        return F.layer_norm(rows, table.shape[1:]) + rows @ weight

    check(function, torch.randint(0, 9, (70,)), torch.randn(9, 24), torch.randn(24, 24), looks_up=False)


@needs_aten
@pytest.mark.parametrize("number", [-1, 9])
def test_no_such_row(number):
    ids, table = torch.randint(0, 9, (3, 7)), torch.randn(9, 24)
    run = compiled(norm_of)
    torch.testing.assert_close(run(ids, table), norm_of(ids, table))
    ids[1, 3] = number
    for each in (norm_of, run):
        with pytest.raises(IndexError, match="index out of range in self"):
            each(ids, table)


@needs_aten
def test_table_that_changes_before_the_backward():
    table = torch.randn(9, 24, requires_grad=True)
    result = compiled(norm_of)(torch.randint(0, 9, (70,)), table)
    with torch.no_grad():
        table.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@needs_aten
def test_table_that_changes_in_the_graph():
    def function(ids, table):
        rows = norm_of(ids, table)
        table.mul_(2)
        return rows + norm_of(ids, table)

    ids, table = torch.randint(0, 9, (70,)), torch.randn(9, 24)
    expected = function(ids, mine := table.clone())
    torch.testing.assert_close(compiled(function)(ids, table), expected)
    assert torch.equal(table, mine)


@needs_aten
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_graphs_of_look_ups(data):
    """Random sums and products of rows of several tables (some shared by all batch elements), row sums and a tensor."""
    images, length, columns = (data.draw(st.integers(1, most)) for most in (3, 9, 20))
    tables = [torch.randn(rows, columns, dtype=torch.float64) for rows in (5, 1, 12)]
    x = torch.randn(images, length, columns, dtype=torch.float64)
    step = st.tuples(st.integers(0, 2), st.booleans(), st.sampled_from("+*s"))
    steps = data.draw(st.lists(step, min_size=1, max_size=5))
    indices = [torch.randint(0, len(tables[t]), (1 if shared else images, length)) for t, shared, _ in steps]

    def function(x, *rest):
        value = x
        for (t, _, kind), index in zip(steps, rest[3:], strict=True):
            rows = F.embedding(index, rest[t])
            product = value * rows
            value = value + rows if kind == "+" else product if kind == "*" else value - product.sum(-1, True)
        return value

    found = [run(x, *tables, *indices) for run in (compiled(function), function)]
    torch.testing.assert_close(*found)


def on_gpu(function, *args, precise):
    found = []
    for run in (compiled(function), function):
        given = [each.clone().requires_grad_() if each.is_floating_point() else each for each in args]
        result = run(*given)
        wanted = [each for each in given if each.requires_grad]
        found.append([result, *torch.autograd.grad(result.square().sum(), wanted)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=precise, atol=precise)


@pytest.mark.gpu
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("columns", [64, 1000, 20480])
def test_on_a_gpu(columns, index):
    ids = torch.randint(0, 90, (6, 50), device="cuda", dtype=index)
    table = torch.randn(90, columns, device="cuda")
    on_gpu(norm_of, ids, table, precise=1e-3)
    on_gpu(lambda ids, table: F.embedding(ids, table).tanh(), ids, table, precise=1e-3)


@needs_aten
def test_rows_in_another_order_are_saved():
    """A bias of attention is gathered once, not in the backward again."""

    def biased(x, table, index):
        return F.silu(x + F.embedding(index, table).permute(2, 0, 1).contiguous())

    given = torch.randn(64, 3, 7, 7), torch.randn(13, 3), torch.randint(0, 13, (7, 7))
    _, backward = check(biased, *given, looks_up=False)
    assert kinds_of(backward).isdisjoint(LOOK_UPS)
