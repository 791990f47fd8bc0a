"""What is added to rows by their numbers, in compiled graphs of a GPU."""

import pytest
import torch

from torch_reformer.compiler import segments


class On(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda")


def takes(into, numbers, source, **types):
    dtype = types.get("dtype", torch.float32)
    made = torch.empty(into, dtype=dtype), torch.empty(numbers, dtype=types.get("ids", torch.int64))
    made = (*made, torch.empty(source, dtype=types.get("of_source", dtype)))
    return segments.takes(*(each.as_subclass(On) for each in made))


def test_what_is_summed_by_segments():
    many = 1 << 14
    assert takes((9, 4), (many,), (many, 4)) and takes((9, 4, 3), (many,), (many, 4, 3), dtype=torch.bfloat16)
    assert takes((9, 4), (many,), (many, 4), ids=torch.int32)
    assert not takes((9, 4), (many - 1,), (many - 1, 4))
    assert not takes((9, 4), (many,), (many, 4), dtype=torch.float64)
    assert not takes((9, 4), (many,), (many, 4), of_source=torch.bfloat16)
    assert not takes((9, 4), (many,), (many, 4), ids=torch.bool)
    assert not takes((9, 0), (many,), (many, 0))
    assert not segments.takes(*(torch.empty(size) for size in ((9, 4), many, (many, 4))))  # on a CPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("columns", [1, 7, 64, 300])
def test_on_a_gpu(dtype, columns):
    torch.manual_seed(0)
    rows, entries = 1000, 40000
    x = torch.randint(-4, 5, (rows, columns), device="cuda").to(dtype).requires_grad_()
    base = torch.randint(-4, 5, (rows, columns), device="cuda").to(dtype).requires_grad_()
    source = torch.randint(0, rows, (entries,), device="cuda")
    target = torch.where(torch.rand(entries, device="cuda") < 0.3, 5, source.flip(0))  # a row of many

    def function(x, base):
        return torch.index_add(base * 1, 0, target, x[source] * 1)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="reformer")
    found, again = compiled(x, base), compiled(x, base)
    assert torch.equal(found, again)
    expected = function(x.double(), base.double())
    grad = torch.randint(-2, 3, found.shape, device="cuda").to(dtype)
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=0)
    gradients = torch.autograd.grad(found, (x, base), grad)
    for one, other in zip(gradients, torch.autograd.grad(expected, (x, base), grad.double()), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=torch.finfo(dtype).eps, atol=0)
