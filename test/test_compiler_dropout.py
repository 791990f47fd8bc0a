"""Dropout in compiled graphs: the forward and the backward compute the same random numbers from a key."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(function, reports=None, **options):
    if reports is not None:
        options["options"] = {"report": reports.append}
    return torch.compile(function, backend=reformer, **options)


def test_is_a_part_of_what_surrounds_it():
    """Each pass is one kernel, besides one call that draws both keys. Only the keys are saved."""
    reports = []
    x = torch.randn(40, 50, requires_grad=True)
    run = compiled(lambda x: F.dropout(F.dropout(x.relu(), 0.3) * 2, 0.5) + x, reports)
    y = run(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert [[line.kind for line in each.lines] for each in reports] == [["aten::randint.low", "stitch"], ["stitch"]]
    added = (y - x).detach()
    expected = torch.where(added != 0, x.relu() * 2 / 0.7 / 0.5, 0).detach()
    torch.testing.assert_close(added, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad, torch.where(added != 0, 2 / 0.35, 0.0) + 1)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share(p):
    """The share of elements that survive is within five standard deviations of its mean."""
    count = 100_000
    left = (compiled(lambda x: F.dropout(x, p))(torch.ones(count)) != 0).sum().item()
    assert abs(left - count * (1 - p)) < 5 * (count * p * (1 - p)) ** 0.5


def test_seeds():
    run = compiled(lambda x: F.dropout(x, 0.5) * 2)
    found = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        found.append(run(torch.ones(500)))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert not torch.equal(run(torch.ones(500)), run(torch.ones(500)))


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(), (1,), (3,), (0, 4), (2, 3, 4, 5), (70, 300)])
def test_gradients(p, dtype, size):
    x = torch.randn(size, dtype=dtype).exp().requires_grad_()
    y = compiled(lambda x: F.dropout(x * 1, p))(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert y.dtype == dtype
    torch.testing.assert_close(y, grad * x.detach())


def test_numbers_that_one_kernel_stores_for_another():
    """float64 computations beside the numbers stay in float64."""
    x = torch.randn(4, dtype=torch.float64)

    def function(x):
        y = F.dropout(x, 0.3)
        return y, torch.maximum((y / 12).expand(2, 3, 4), x)

    y, greatest = compiled(function)(x)
    torch.testing.assert_close(y, torch.where(y != 0, x / 0.7, 0), rtol=1e-14, atol=0)
    torch.testing.assert_close(greatest, torch.maximum((y / 12).expand(2, 3, 4), x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("channels_last", [False, True])
def test_of_images(channels_last):
    """In both memory formats the same elements are dropped wherever the numbers are computed."""
    norm = nn.BatchNorm2d(6)
    x = torch.randn(8, 6, 5, 4)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    x.requires_grad_()

    def function(x):
        y = F.dropout(norm(x).sigmoid(), 0.5)
        return y, y.contiguous() * 2, y.transpose(1, 3) + 1, F.dropout2d(x, 0.5)

    y, doubled, transposed, planes = compiled(function)(x)
    torch.testing.assert_close(y * 2, doubled)
    torch.testing.assert_close(y.transpose(1, 3) + 1, transposed)
    assert (planes == 0).flatten(2).float().mean(2).unique().tolist() in ([0, 1], [0], [1])
    (grad,) = torch.autograd.grad(y.sum() + planes.sum(), norm.bias)
    slope = norm(x).sigmoid() * (1 - norm(x).sigmoid())
    torch.testing.assert_close(grad, torch.where(y != 0, 2 * slope, 0).sum((0, 2, 3)), rtol=1e-3, atol=1e-3)


def test_of_a_checkpoint():
    """A checkpoint's recomputation drops the same elements."""
    linear = nn.Linear(16, 16)
    x = torch.randn(20, 16, requires_grad=True)
    y = compiled(lambda x: checkpoint(lambda x: F.dropout(linear(x).exp(), 0.3) * x, x, use_reentrant=False))(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    before = linear(x).exp()
    (expected,) = torch.autograd.grad((before * (y.detach() != 0) / 0.7 * x).sum(), x)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)


def test_sizes_that_change():
    run = compiled(lambda x: F.dropout(x, 0.5) + 1, dynamic=True)
    for count in (5, 6, 700, 1):
        assert set(run(torch.ones(count, 3)).unique().tolist()) <= {1.0, 3.0}


def test_numbers_by_themselves():
    """The operator that computes the numbers gives the same ones inside and outside a program."""
    key = torch.tensor([123456789])
    numbers = torch.ops.reformer._random(key, [3, 40, 20], [800, 1, 40])
    assert numbers.stride() == (800, 1, 40) and 0 <= numbers.min() and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.05
    inside = compiled(lambda key: torch.ops.reformer._random(key, [3, 40, 20], [800, 1, 40]) + 0.0)(key)
    assert torch.equal(inside, numbers)
