"""Random numbers of a training graph: gradients use those of the result, whatever is recomputed, and each draw gives
numbers of its own."""

import functools

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


def scaled(draw):
    """A function that multiplies by random numbers from `draw`, and also returns them."""

    def function(x):
        numbers = draw(x.detach()).to(x.dtype)
        return (x.sin() * numbers).tanh(), numbers

    return function


def rrelu(x):
    """RReLU, and its slopes: random numbers between the bounds, or 1."""
    x = x.sin()
    y = F.rrelu(x, 0.1, 0.9, training=True)
    return y.tanh(), (y / x).detach()


def attention(x):
    """Attention with equal probabilities over an identity matrix: its results are dropout's numbers."""
    q, values = torch.zeros(2, 8, 8, dtype=x.dtype), torch.eye(8, dtype=x.dtype).expand(2, 8, 8)
    numbers = F.scaled_dot_product_attention(q, q, values, dropout_p=0.5).reshape(x.shape)
    return (x.sin() * numbers).tanh(), numbers


def table(x):
    return torch.multinomial(x.softmax(-1), x.shape[-1], replacement=True) / x.shape[-1]


FUNCTIONS = {
    "rand_like": scaled(torch.rand_like),
    "randn": scaled(lambda x: torch.randn(x.shape)),
    "randn_like": scaled(torch.randn_like),
    "randint": scaled(lambda x: torch.randint(5, x.shape)),
    "randperm": scaled(lambda x: torch.randperm(x.numel()).view(x.shape) / x.numel()),
    "bernoulli of a tensor": scaled(lambda x: torch.bernoulli(x.sigmoid())),
    "bernoulli of a number": scaled(lambda x: torch.bernoulli(x, 0.3)),
    "uniform": scaled(lambda x: torch.empty_like(x).uniform_()),
    "exponential": scaled(lambda x: torch.empty_like(x).exponential_()),
    "normal": scaled(torch.normal),
    "poisson": scaled(lambda x: torch.poisson(x.abs())),
    "multinomial": scaled(table),
    "dropout": scaled(lambda x: F.dropout(torch.ones_like(x))),
    "attention": attention,
    "rrelu": rrelu,
}


def layers(x, layer):
    """The last layer's result, and the random numbers of all layers."""
    found = []
    for _ in range(3):
        y, numbers = layer(x)
        x = x + y.sin()
        found.append(numbers)
    return x, found


@pytest.mark.parametrize("budget", [0, 0.3, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_by_the_numbers_of_the_result(name, budget):
    torch._dynamo.reset()
    function = functools.partial(layers, layer=FUNCTIONS[name])
    x = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
    options = {"memory_budget": budget}
    result, numbers = torch.compile(function, backend=reformer, fullgraph=True, options=options)(x)
    result.backward(weights := torch.randn(8, 16, dtype=torch.float64))
    assert not any(torch.equal(one, other) for one, other in zip(numbers, numbers[1:], strict=False))
    left = iter(numbers)
    same = x.detach().requires_grad_()
    expected, _ = layers(same, lambda x: ((x.sin() * (known := next(left).detach())).tanh(), known))
    expected.backward(weights)
    torch.testing.assert_close((result, x.grad), (expected, same.grad))


@pytest.mark.parametrize("training", [False, True])
def test_equal_draws_are_two(training):
    """PyTorch's partition merges equal operations, except for the random ones that it knows."""

    def function(x):
        noise = [torch.randn_like(x), torch.randn_like(x), *(torch.zeros_like(x).exponential_() for _ in range(2))]
        return x * (noise[0] - noise[1]), x * (noise[2] - noise[3])

    torch._dynamo.reset()
    x = torch.ones(20, requires_grad=training)
    for result in torch.compile(function, backend=reformer, fullgraph=True)(x):
        assert result.abs().min() > 0
