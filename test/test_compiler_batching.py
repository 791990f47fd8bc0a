"""Batching of the products and sums of a loop's steps, and concatenations whose parts kernels write in place."""

import functools
import operator

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten

STEPS, WIDTH = 6, 8
PRODUCTS = ("aten::mm", "aten::addmm")
added = functools.partial(functools.reduce, operator.add)


class Unrolled(nn.Module):
    """A recurrent layer: one product of the inputs of all steps, and one of the state per step."""

    def __init__(self):
        super().__init__()
        self.input, self.state = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], WIDTH)
        for i in range(x.shape[1]):
            (a, b, c), (d, e, f) = self.input(x[:, i].tanh()).chunk(3, -1), self.state(h).chunk(3, -1)
            gate = torch.sigmoid(a + d)
            h = (1 - gate) * h + gate * torch.tanh(c + torch.sigmoid(b + e) * f)
        return h


def kinds(function, *inputs, gradients=True, dtype=torch.float64) -> list[list[str]]:
    """Kinds of the calls of the forward and of the backward; checks that results and gradients are PyTorch's."""
    torch._dynamo.reset()
    reports = []
    compiled = torch.compile(function, backend=reformer, options={"report": reports.append})
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    found = []
    for call in (compiled, function):
        given = [each.detach().to(dtype, copy=True).requires_grad_(gradients) for each in inputs]
        results = call(*given)
        results = results if isinstance(results, tuple) else (results,)
        wanted = [each for each in (*given, *parameters) if each.requires_grad]
        grads = torch.autograd.grad([each.square().sum() for each in results], wanted) if wanted else []
        found.append([*results, *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
        assert one.stride() == other.stride()
    assert len({each.untyped_storage().data_ptr() for each in results}) == len(results)
    return [[line.kind for line in report.lines] for report in reports]


def count(kinds: list[str], *names: str) -> int:
    return sum(each in names or each.split(".")[0] in names for each in kinds)


def test_products_of_a_loop():
    """The backward has one product for the gradient of each step's state but the first, one for the input's, and
    two for the weights'."""
    torch.manual_seed(0)
    forward, backward = kinds(Unrolled().double(), torch.randn(4, STEPS, WIDTH))
    assert count(forward, *PRODUCTS) == STEPS + 1
    assert count(backward, *PRODUCTS) == STEPS - 1 + 3


def test_gradient_of_what_steps_take():
    """No step writes a gradient of the whole input."""
    torch.manual_seed(0)
    _, backward = kinds(Unrolled().double(), torch.randn(4, STEPS, WIDTH))
    assert not count(backward, "aten::eq")


def test_some_places_are_taken():
    """Places that no step takes have gradients of zero."""

    def function(x):
        return sum((x[:, i] * (i + 1)).exp() for i in (0, 2, 3, 4, 5))

    kinds(function, torch.randn(4, 7, WIDTH))
    kinds(lambda x: function(x) + x[:, 1] * x[:, 6] + x.sum(1), torch.randn(4, 7, WIDTH))


def test_two_gradients_that_are_the_same():
    """Equal gradients do not share memory."""

    def function(x, y):
        return added((x[:, i] + y[:, i]).tanh() for i in range(5))

    x, y = (torch.randn(4, 5, WIDTH).requires_grad_() for _ in range(2))
    torch.compile(function, backend=reformer)(x, y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert x.grad.untyped_storage().data_ptr() != y.grad.untyped_storage().data_ptr()


def test_a_place_is_taken_twice():
    kinds(lambda x: sum(x[:, i % 4].exp() * i for i in range(9)), torch.randn(4, 4, WIDTH))


def test_products_that_need_one_another():
    """With two weights, products of the first are needed before some of the second, and after others of it."""

    def function(first, second, x):
        one = [each @ first for each in x.unbind()]
        two = [(each + one[0]).tanh() @ second for each in one]
        three = [each.sin() @ first for each in two]
        return sum(each.exp() for each in three) + three[0].tanh() @ second

    (first, second), x = torch.randn(2, WIDTH, WIDTH) / 4, torch.randn(5, 4, WIDTH)
    (forward,) = kinds(function, first, second, x, gradients=False)
    assert count(forward, *PRODUCTS) == 4
    kinds(function, first, second, x)


def test_the_same_rows_in_two_products():
    def function(first, second, x):
        one = [(each + x.sum()) @ first for each in x.unbind()]
        rows = [a.tanh() + b for a, b in zip(one[::-1], x, strict=True)]
        return added([*(each @ first for each in rows), *((each @ second).tanh() for each in rows)])

    (first, second), x = torch.randn(2, WIDTH, WIDTH), torch.randn(5, 4, WIDTH)
    (forward,) = kinds(function, first, second, x, gradients=False)
    assert count(forward, *PRODUCTS) == 3 and count(forward, "aten::cat") == 0  # kernels write the joined rows
    kinds(function, first, second, x)


def test_what_is_added_to_products():
    """One vector is added to all rows of all products; matrices are not joined."""
    w, x, rows = torch.randn(WIDTH, WIDTH), torch.randn(5, 4, WIDTH), torch.randn(4, WIDTH)
    for bias, joined in ((rows[0], True), (rows, False), (rows[:1], False)):
        for scale in (1, 2):
            function = lambda w, x, bias: added(torch.addmm(bias, each, w, beta=scale).tanh() for each in x)  # noqa: B023, E731
            (forward,) = kinds(function, w, x, bias, gradients=False)
            assert count(forward, *PRODUCTS) == (1 if joined and scale == 1 else 5)


def test_products_in_another_order():
    """Some products that depend on one of the first kind are needed before others of the first kind."""

    def function(first, second, x):
        zero = x[0] @ second
        one = [(zero + each) @ first for each in x[:3]]
        two = [each.tanh() @ second for each in (x[1], x[2] + zero.sin(), one[0], one[1])]
        three = [each @ first for each in (two[3], two[2], x[1] * 2, x[2] * 3)]
        return added([*one, *two, *three]) + (three[0] + x[3]) @ second

    kinds(function, *torch.randn(2, WIDTH, WIDTH), torch.randn(4, 4, WIDTH))
    kinds(function, *torch.randn(2, WIDTH, WIDTH), torch.randn(4, 4, WIDTH), gradients=False)


def test_terms_of_which_others_are_made_too():
    kinds(lambda x: added(each.max(1)[0] for each in x), torch.randn(5, 4, WIDTH), gradients=False)
    kinds(lambda x: added(x.unsafe_chunk(5)), torch.randn(5, 4, WIDTH), gradients=False)


def test_crossed_products():
    """No order has all products of one weight before or after all of the other."""

    def function(first, second, x, y):
        found = []
        for i in range(4):
            a = (x[i] if i % 2 else x[i] + y[i] @ second) @ first
            found.append(a if i % 2 == 0 else (a + y[i]) @ second)
        return sum(each.tanh() for each in found)

    (first, second), (x, y) = torch.randn(2, WIDTH, WIDTH), torch.randn(2, 4, 4, WIDTH)
    kinds(function, first, second, x, y)


def test_products_that_are_results():
    """Results of the graph do not share memory, so that these products stay apart."""
    forward = kinds(
        lambda w, x: tuple(each @ w for each in x.unbind()), torch.randn(WIDTH, 3), torch.randn(5, 4, WIDTH)
    )
    assert count(forward[0], *PRODUCTS) == 5


def test_products_of_what_is_written_in_between():
    """A product that reads a buffer is not moved behind a write to the buffer."""

    def function(buffer, w, x):
        found = []
        for i in range(5):
            found.append((buffer @ w).tanh())
            buffer.add_(x[i])
        return sum(found)

    torch._dynamo.reset()
    w, x, expected = torch.randn(WIDTH, WIDTH), torch.randn(5, 4, WIDTH), []
    for call in (torch.compile(function, backend=reformer), function):
        buffer = torch.zeros(4, WIDTH)
        expected.append((call(buffer, w, x), buffer))
    torch.testing.assert_close(*expected)


def test_large_products_are_not_copied():
    w, x = torch.randn(256, 4), torch.randn(5, 512, 256).unbind()
    forward, backward = kinds(lambda w, *x: sum((each * 2).tanh() @ w for each in x), w, *x)
    assert count(forward, *PRODUCTS) == 5
    assert not count(backward, "aten::cat")


def test_products_of_what_lies_side_by_side():
    """Products of adjacent matrices are one, without a copy."""
    w, x = torch.randn(256, 4), torch.randn(5, 512, 256)
    (forward,) = kinds(lambda w, x: sum((each @ w).exp() for each in x.unbind()), w, x, gradients=False)
    assert count(forward, *PRODUCTS) == 1 and not count(forward, "aten::cat")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_sums(dtype):
    """Sums over rows of several tensors are one sum; another term is added to it."""

    def function(x, y):
        return added((each * 2).tanh().sum(0) for each in x.unbind()) + y

    torch._dynamo.reset()
    x, y, reports = torch.randn(5, 30, WIDTH, dtype=dtype), torch.randn(WIDTH, dtype=dtype), []
    found = torch.compile(function, backend=reformer, options={"report": reports.append})(x, y)
    torch.testing.assert_close(found, function(x, y))
    operations = [each for line in reports[0].lines for each in line.operations]
    assert operations.count("sum") == 1


def parts_of(function, *inputs) -> list[str]:
    """Kinds of what a call runs; checks that the results are PyTorch's."""
    torch._dynamo.reset()
    reports = []
    found = torch.compile(function, backend=reformer, options={"report": reports.append})(*inputs)
    for one, other in zip(found, function(*inputs), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    return [line.kind for line in reports[0].lines]


def gates(x, y):
    """Three results that programs compute by many operations."""
    return [(x * i + y).sigmoid() * (x - i * y).tanh() + (x * y).exp() for i in range(3)]


@pytest.mark.parametrize("dim", [1, -1])
def test_parts_are_written_where_they_belong(dim):
    def function(x, y):
        a, b, c = gates(x, y)
        return torch.cat([a, b, c], dim), torch.cat([a, b], dim), c.square(), c.sum(0)

    inputs = torch.randn(2, 6, 10, 16).unbind()
    assert parts_of(function, *inputs) == ["stitch"]
    assert parts_of(lambda *inputs: [each.bfloat16() for each in function(*inputs)], *inputs)


def test_parts_that_are_copied():
    """Parts of several kernels, in another order of memory, in another data type, or that are inputs."""

    def function(x, y):
        a, b, c = gates(x, y)
        transposed = torch.cat([a.transpose(0, 1), b.transpose(0, 1)], -1)
        rows = torch.cat([a, a.mean(0, keepdim=True).expand_as(a) + 1, y], 1)
        return transposed, rows, torch.cat([a, b.bfloat16()], 1), torch.cat([a, c[:3]], 0), torch.cat([b, x], 1)

    assert "aten::cat" in parts_of(function, *torch.randn(2, 6, 10, 16).unbind())


def test_more_parts_than_a_kernel_writes():
    def function(x, y):
        found = [each * i for i in range(5) for each in gates(x, y)]
        return [torch.cat([each, found[i - 1]], 1) for i, each in enumerate(found)]

    parts_of(function, *torch.randn(2, 6, 10, 16).unbind())


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("is_whole", [True, False])
def test_selected_parts(dim, is_whole):
    """The gradient of a projection from which each of three parts is selected is their stack. Another choice of parts
    stays a sum."""
    torch._dynamo.reset()
    projection, reports = nn.Linear(WIDTH, 3 * WIDTH), []

    def function(x):
        parts = projection(x).unflatten(-1, (3, WIDTH)).movedim(-2, dim).contiguous()
        first, second, third = (parts.select(dim, i) for i in ((0, 1, 2) if is_whole else (0, 1, 1)))
        return first.sin() * second.cos() * third.tanh()

    compiled = torch.compile(function, backend=reformer, options={"report": reports.append})
    x, weights = torch.randn(5, 7, WIDTH), torch.randn(5, 7, WIDTH)
    expected = torch.autograd.grad(function(x), projection.parameters(), weights)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), projection.parameters(), weights), expected)
    assert not is_whole or not any("where" in line.title for line in reports[-1].lines)
