"""Gradients of embedding tables in compiled graphs."""

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
