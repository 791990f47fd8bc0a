"""Buffer reuse: results that kernels write over inputs that no other step reads."""

import pytest
import torch
import torch.nn.functional as F
from compiled_steps import executables
from marks import needs_aten
from torch import nn
from torch._functorch import config as functorch_config

from torch_reformer import program as p
from torch_reformer.runtime import plan

pytestmark = needs_aten


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def overwritten(executable) -> int:
    """Number of results that a plan's kernels write over their own inputs."""
    return sum(len(set(step.into) & set(step.inputs)) for step in executable.plan.steps if step.kind == "stitch")


def step_of(function, *inputs, monkeypatch):
    """Numbers of reused buffers in forward and backward; gradients are compared with PyTorch's."""
    inputs = [each.clone().requires_grad_() for each in inputs]
    found = [overwritten(each) for each in executables(Of(function), *inputs, monkeypatch=monkeypatch)]
    expected = torch.autograd.grad(function(*inputs).square().sum(), inputs)
    for each, wanted in zip(inputs, expected, strict=True):
        torch.testing.assert_close(each.grad, wanted)
    return found


def matrices(*sizes):
    torch.manual_seed(0)
    return [torch.randn(size, dtype=torch.float64) for size in sizes]


def test_what_follows_a_product(monkeypatch):
    def function(activation):
        return lambda x, weight, bias: activation(F.linear(x, weight, bias))

    tensors = matrices((64, 32), (128, 32), (128,))
    forward, _ = step_of(function(F.relu), *tensors, monkeypatch=monkeypatch)
    assert forward == 1
    # The backward of this one reads the product.
    forward, _ = step_of(function(F.silu), *tensors, monkeypatch=monkeypatch)
    assert forward == 0


def test_a_product_that_is_read_by_other_dimensions(monkeypatch):
    def function(x, weight):
        return F.linear(x.view(4, 16, 32), weight).relu()

    forward, _ = step_of(function, *matrices((64, 32), (128, 32)), monkeypatch=monkeypatch)
    assert forward == 1


def test_a_product_with_another_dimension_of_one(monkeypatch):
    """A stride of one element is of no account: here it is 0, and that of the result is not."""

    def function(x, weight):
        return (x @ weight).expand(1, 64, 128).relu()

    forward, _ = step_of(function, *matrices((64, 32), (32, 128)), monkeypatch=monkeypatch)
    assert forward == 1


@torch.no_grad()
def test_rows_with_zeros_behind_them():
    """Padded rows written over another kernel's result, which the plan views in other sizes."""

    def function(x, weight, other):
        value = (x @ weight).relu()
        padded = F.pad(value[:, :72].sigmoid(), (0, 8))
        return padded, padded @ other

    torch.manual_seed(0)
    tensors = [torch.randn(size) for size in ((8, 12), (12, 80), (80, 3))]
    found, expected = torch.compile(function, backend="reformer")(*tensors), function(*tensors)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


def test_several_kernels_in_a_row(monkeypatch):
    """A perceptron: each gradient overwrites the one that it is computed from."""

    def function(x, first, second, third):
        return F.relu(F.relu(x @ first) @ second) @ third

    tensors = matrices((64, 32), (32, 96), (96, 80), (80, 16))
    assert step_of(function, *tensors, monkeypatch=monkeypatch) == [2, 2]


def test_rows(monkeypatch):
    """A softmax, which reads each row more than once before it overwrites it."""

    def function(x, weight):
        return (x @ weight).softmax(-1) @ weight.t()

    forward, _ = step_of(function, *matrices((48, 32), (32, 600)), monkeypatch=monkeypatch)
    assert forward == 1


NOT = {
    "read again": lambda x, weight: (scores := x @ weight).relu() @ scores.t(),
    "given back": lambda x, weight: torch.cat([(scores := x @ weight).relu().sum(1), scores.flatten()]),
    "given": lambda x, weight: x.relu() + weight.sum(),
    "part": lambda x, weight: (x @ weight)[:, :64].relu(),
    "a table": lambda x, weight: (y := x @ weight).relu() + F.embedding(torch.arange(63, -1, -1), y),
    "a table by index_select": lambda x, weight: (y := x @ weight).relu() + y.index_select(0, torch.arange(63, -1, -1)),
    "repeated": lambda x, weight: (x @ weight)[:1].expand(64, 128).relu() * x.sum(),
}


@pytest.mark.parametrize("what", NOT)
def test_what_stays_as_it_is(what, monkeypatch):
    forward, _ = step_of(NOT[what], *matrices((64, 32), (32, 128)), monkeypatch=monkeypatch)
    assert forward == 0


def test_several_results_of_rows(monkeypatch):
    """Each result overwrites a different tensor or has its own memory."""

    def function(x, weight):
        y = x @ weight
        return torch.cat([y.relu(), y.softmax(1)], 1)

    step_of(function, *matrices((48, 32), (32, 600)), monkeypatch=monkeypatch)


@pytest.mark.parametrize("sizes", [((1, 3), (3, 2)), ((2, 3), (3, 1)), ((1, 3), (3, 1))], ids=str)
def test_reductions_of_few_elements(sizes, monkeypatch):
    """Moments of two elements are two numbers, so they are as large as the input."""

    def function(x, weight):
        return torch.cat([each.view(1) for each in torch.var_mean((x @ weight).flatten(), 0, correction=0)])

    step_of(function, *matrices(*sizes), monkeypatch=monkeypatch)


def test_results_of_another_type(monkeypatch):
    tensors = [each.float().requires_grad_() for each in matrices((64, 32), (32, 128))]
    forward, _ = executables(Of(lambda x, weight: (x @ weight).relu().bfloat16()), *tensors, monkeypatch=monkeypatch)
    assert overwritten(forward) == 0


@functorch_config.patch(donated_buffer=False)
def test_backward_runs_twice():
    """Tensors that a forward saves are not overwritten if the backward may run twice."""
    x, first, second = (each.requires_grad_() for each in matrices((64, 32), (32, 96), (96, 16)))
    result = torch.compile(lambda *t: (F.relu(t[0] @ t[1]) @ t[2]).exp().sum(), backend="reformer")(x, first, second)
    once = torch.autograd.grad(result, (x, first, second), retain_graph=True)
    again = torch.autograd.grad(result, (x, first, second))
    for one, other in zip(once, again, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("place", ["acc", "input", "other", "transposed", "part"])
def test_a_program_writes_there(dtype, place):
    """A program writes over any of its inputs, into another tensor, in another memory order, or into a slice."""
    torch.manual_seed(0)
    one, other = (torch.randn(6, 5, 4, 8).to(dtype) for _ in range(2))
    into = {"acc": one, "input": other, "other": torch.empty_like(one)}.get(place)
    if place == "transposed":
        into = torch.empty_like(one, memory_format=torch.channels_last)
    elif place == "part":
        into = torch.empty(6, 5, 4, 9, dtype=dtype)[..., :8]
    expected = (one + other).relu(), one - other
    program = p.Program(p.store(p.acc() - p.full("other")), p.store(p.relu(p.acc() + p.full("other"))))
    steps = plan.Plan(3)
    difference, written = steps.stitch(program.code, 0, (1,), (2,))
    steps.give(difference, written)
    found = plan.run(steps, [one, other, into])
    for each, wanted in zip(found, expected[::-1], strict=True):
        torch.testing.assert_close(each, wanted)
    assert (found[1].data_ptr() == into.data_ptr()) == (place in ("acc", "input", "other"))
