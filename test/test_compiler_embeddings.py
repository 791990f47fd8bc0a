"""Gradients of embedding tables in compiled graphs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

import torch_reformer  # noqa: F401  registers the operators


def gradient(function, table, ids):
    table = table.detach().requires_grad_()
    result = function(table, ids)
    weights = (torch.arange(result.numel(), device=result.device) % 17 - 8).view(result.shape) / 8  # exact in all types
    return torch.autograd.grad((result * weights).sum(), table)[0]


def check(rows, columns, ids, dtype=torch.float64, device="cpu", **options):
    torch._dynamo.reset()

    def function(table, ids):
        return F.embedding(ids, table, **options).tanh()

    table, ids = torch.randn(rows, columns, dtype=dtype, device=device), ids.to(device)
    found = gradient(torch.compile(function, backend="reformer"), table, ids)
    expected = gradient(function, table.double(), ids)
    assert (found.double() - expected).norm() <= 16 * torch.finfo(dtype).eps * expected.norm()


@needs_aten
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 90])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 0}, {"scale_grad_by_freq": True}], ids=str)
def test_gradient(rows, options):
    for size in [(40,), (3, 7), ()]:
        check(rows, 12, torch.randint(0, rows, size), **options)


@needs_aten
@pytest.mark.parametrize("rows", [3, 50])
def test_no_columns(rows):
    check(rows, 0, torch.randint(0, rows, (6,)))


@needs_aten
def test_no_ids():
    check(3, 12, torch.zeros(0, 5, dtype=torch.int64))


def test_the_operator_is_pytorchs_on_a_cpu():
    ids, grad = torch.randint(0, 9, (5, 4)), torch.randn(5, 4, 3)
    found = torch.ops.reformer._embedding_grad(grad, ids, 9, 2, False)
    assert torch.equal(found, torch.ops.aten.embedding_dense_backward(grad, ids, 9, 2, False))
    with pytest.raises(RuntimeError, match=r"_embedding_grad: grad has size \[5, 4, 3\], which is not that of the ids"):
        torch.ops.reformer._embedding_grad(grad, ids[0], 9, 2, False)


@pytest.mark.gpu
@pytest.mark.parametrize("by_frequency", [False, True])
def test_few_ids_of_a_large_table(by_frequency):
    """Most of its rows are zeros."""
    ids = torch.randint(0, 50000, (7, 300), device="cuda") // 2 * 2
    grad = torch.randint(-8, 9, (7, 300, 200), device="cuda").float()
    ids[0] = ids[1, 0]
    expected = torch.ops.aten.embedding_dense_backward(grad, ids, 50000, int(ids[1, 1]), by_frequency)
    found = torch.ops.reformer._embedding_grad(grad, ids, 50000, int(ids[1, 1]), by_frequency)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("padding", [-1, 0, 3])
def test_added_in_place(padding):
    ids, grad, sum = torch.randint(0, 9, (5, 4)), torch.randn(5, 4, 3), torch.randn(9, 3)
    expected = sum + torch.ops.aten.embedding_dense_backward(grad, ids, 9, padding, False)
    torch.testing.assert_close(torch.ops.reformer._embedding_grad(grad, ids, 9, padding, False, sum), expected)
    found = torch.ops.reformer._add_embedding_grad_(sum, grad, ids, padding)
    assert found.data_ptr() == sum.data_ptr()
    torch.testing.assert_close(sum, expected)
    with pytest.raises(RuntimeError, match=r"sum has size \[3, 9\] and strides \[1, 3\], not contiguous rows of 3"):
        torch.ops.reformer._add_embedding_grad_(sum.t(), grad, ids)


def of_rows(grad, ids):
    return torch.ops.reformer._embedding_grad(grad, ids, 9, 3, False)


SUMS = {  # of gradients of one table, and how many are added in place
    "a product": (lambda x, grad, ids: x @ x.t() @ grad[:9] + of_rows(grad, ids), 1),
    "a product behind": (lambda x, grad, ids: of_rows(grad, ids) + x @ x.t() @ grad[:9], 1),
    "products": (
        lambda x, grad, ids: x @ grad[:5] + of_rows(grad, ids) + x.sin() @ grad[:5] + of_rows(grad * 3, ids),
        2,
    ),
    "a program": (lambda x, grad, ids: x[:, :3].sin() + of_rows(grad, ids), 1),
    "an input": (lambda x, grad, ids: grad[:9] + of_rows(grad, ids), 1),
    "a result": (lambda x, grad, ids: (lambda y: (y + of_rows(grad, ids), y))(x @ grad[:5]), 1),
    "what is read later": (lambda x, grad, ids: (lambda y: (y + of_rows(grad, ids)) @ y.t())(x @ grad[:5]), 1),
    "itself": (lambda x, grad, ids: (lambda y: y + of_rows(y, ids[:9]))(x @ grad[:5]), 1),
    "columns": (lambda x, grad, ids: (x @ x.t())[:, :3] + of_rows(grad, ids), 0),
    "the other order of memory": (lambda x, grad, ids: (grad[:5].t() @ x.t()).t() + of_rows(grad, ids), 1),
    "another shape": (lambda x, grad, ids: (x @ grad[:5]).view(3, 9) + of_rows(grad, ids).view(3, 9), 0),
    "another type": (lambda x, grad, ids: (x @ grad[:5]).float() + of_rows(grad, ids), 0),
}


@needs_aten
@pytest.mark.parametrize("name", SUMS)
def test_sums_with_other_gradients(name):
    """They are added to another gradient's memory, or to that of its copy if anything else reads it."""
    torch._dynamo.reset()
    function, in_place = SUMS[name]
    x, grad, ids = torch.randn(9, 5).double(), torch.randn(12, 3).double(), torch.randint(0, 9, (12,))
    kept = x.clone(), grad.clone(), ids.clone()
    compiled = torch.compile(function, backend="reformer")
    compiled(x, grad, ids)
    with torch.profiler.profile() as profile:
        found = compiled(x, grad, ids)
    torch.testing.assert_close(found, function(x, grad, ids))
    assert all(map(torch.equal, (x, grad, ids), kept))
    assert [event.name for event in profile.events()].count("reformer::_add_embedding_grad_") == in_place


@needs_aten
def test_a_report_counts_the_rows_that_change():
    def function(x, grad, ids):
        return x @ grad[:3] + torch.ops.reformer._embedding_grad(grad, ids, 900, 3, False)

    torch._dynamo.reset()
    reports = []
    compiled = torch.compile(function, backend="reformer", options={"report": reports.append})
    compiled(torch.randn(900, 3), torch.randn(12, 3), torch.randint(0, 900, (12,)))
    (line,) = [line for line in reports[0].lines if "embedding_grad" in line.kind]
    rows = 12 * 3 * 4
    assert (line.read, line.written) == (rows + 12 * 8 + rows, rows)


class Tied(torch.nn.Module):
    """Words from words, by one table. shared: it is read by another product, too."""

    def __init__(self, padding=None, shared=False):
        super().__init__()
        self.words, self.first, self.shared = torch.nn.Embedding(50, 16, padding), torch.nn.Linear(16, 16), shared

    def forward(self, ids, classes):
        x = self.first(self.words(ids)).tanh()
        if self.shared:
            x = x + torch.softmax(x @ self.words.weight.t(), -1) @ self.words.weight
        return F.cross_entropy((x @ self.words.weight.t()).flatten(0, 1), classes.flatten())


@needs_aten
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", [None, 3])
def test_a_table_that_is_also_a_weight(padding, shared, device):
    """Its gradients, also where a backward runs twice."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Tied(padding, shared).to(device)
    given = [torch.randint(0, 50, (4, 7), device=device) for _ in range(2)]
    double = copy.deepcopy(model).double()
    exact = torch.autograd.grad(double(*given), [*double.parameters()])
    loss = torch.compile(model, backend="reformer")(*given)
    first = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
    kept = [each.clone() for each in first]
    second = torch.autograd.grad(3 * loss, [*model.parameters()])
    for own, before, other, expected in zip(first, kept, second, exact, strict=True):
        assert torch.equal(own, before)
        torch.testing.assert_close(own.double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.double(), 3 * expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_on_a_gpu(ids, dtype):
    torch.manual_seed(0)
    many = torch.randint(0, 500, (6, 300), dtype=ids)
    many[many > 400] = 17
    for columns in (64, 1000, 3):
        for options in ({}, {"padding_idx": 17, "scale_grad_by_freq": True}):
            check(30000, columns, many, dtype, "cuda", **options)
            check(500, columns, many, dtype, "cuda", **options)
    check(3, 64, many % 3, dtype, "cuda")
    grad = torch.randn(100000, 8, dtype=dtype, device="cuda")  # more ids than one block should read
    numbers = torch.randint(0, 50, (100000,), dtype=ids, device="cuda")
    found = torch.ops.reformer._embedding_grad(grad, numbers, 50, -1, False)
    assert found.shape == (50, 8) and found.isfinite().all()


@pytest.mark.gpu
def test_the_same_bits_on_a_gpu():
    grad = torch.randn(8192, 1024, dtype=torch.bfloat16, device="cuda")
    ids = torch.randint(0, 30522, (8192,), device="cuda")
    ids[::3] = 5
    first, second = (torch.ops.reformer._embedding_grad(grad, ids, 30522, -1, False) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows, columns, count", [(32, 8, 262144), (169, 12, 2401), (732, 12, 38809), (7, 768, 8192)])
def test_few_rows_on_a_gpu(rows, columns, count, dtype):
    """Gradients in both orders of memory, with and without a base: near the exact sums, and the same bits again."""
    torch.manual_seed(0)
    ids = torch.randint(0, rows, (count,), device="cuda")
    ids[::3] = 5
    grad, base = (torch.randn(size, columns, dtype=dtype, device="cuda") for size in (count, rows))
    exact = torch.zeros(rows, columns, dtype=torch.float64, device="cuda").index_add(0, ids, grad.double())
    for values in (grad, grad.t().contiguous().t()):
        for start, of_all in ((None, exact), (base, exact + base)):
            given = values, ids.int(), rows, -1, False, start
            first, second = (torch.ops.reformer._embedding_grad(*given) for _ in range(2))
            assert torch.equal(first, second)
            assert (first - of_all).norm() <= 2 * torch.finfo(dtype).eps * of_all.norm()
