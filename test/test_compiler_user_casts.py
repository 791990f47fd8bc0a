"""Casts in the user's code round as in eager mode, also if a program goes on with the result. Casts to bool or integers
are not treated as rounding."""

import pytest
import torch
from compiled_steps import executables
from marks import needs_aten
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_reformer.compiler.ir import graph as ir

pytestmark = needs_aten
BF16 = torch.bfloat16


def lost(x):
    return x * 4 - (x * 4).bfloat16().float()


def copied(x):
    narrow = torch.empty_like(x, dtype=BF16)
    narrow.copy_(x * 4)
    return x * 4 - narrow


def assigned(x):
    narrow = torch.zeros(9, 8, dtype=BF16)
    narrow[:6] = x * 4
    return x * 4 - narrow[:6].float()


def high_and_low(x):
    high = (x * 4).bfloat16()
    return high, (x * 4 - high.float()).half()


def of_a_product(x):
    y = x.bfloat16()
    return x * 4, y.float() * y.float() - (y * y).float()


class Lost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return lost(x)

    @staticmethod
    def backward(ctx, grad):
        return lost(grad)


FUNCTIONS = {
    "methods": lost,
    "to": lambda x: x * 4 - (x * 4).to(BF16).to(x),
    "type": lambda x: x * 4 - (x * 4).type(torch.float16).type_as(x),
    "promotion": lambda x: x * 4 - (x * 4).half(),
    "operators": lambda x: x * 4 - torch.ops.aten.to.dtype(torch.ops.aten._to_copy(x * 4, dtype=BF16), torch.float32),
    "copied": copied,
    "assigned": assigned,
    "error feedback": high_and_low,
    "a product": of_a_product,
    "two narrow types": lambda x: x * 4 - (x * 4).half().bfloat16().float(),
    "a reduction": lambda x: (x * 4 - (x * 4).bfloat16().float()).amax(1),
    "autograd.Function": Lost.apply,
    "checkpoint": lambda x: checkpoint(lost, x, use_reentrant=False),
    "torch.func.grad": torch.func.grad(lambda x: lost(x).square().sum()),
    "not looked into": torch.compiler.allow_in_graph(lambda x: lost(x)),
    "bool": lambda x: (x * 2).bool().float() * 2,
    "bool, concatenated": lambda x: torch.cat([x, x], 1).bool().float().view(6, 16, 1, 1).var((0, 2, 3)),
    "bool, added up": lambda x: x.sum(0).bool().float() + x.sum(0).bool().float(),
    "int": lambda x: (x * 2).int().float() * 2,
}


def values():
    x = torch.linspace(-3, 3, 48).view(6, 8)
    x[2] = 0
    return x


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_round_trips(name, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(FUNCTIONS[name], backend="reformer", dynamic=dynamic)
    torch.testing.assert_close(compiled(values()), FUNCTIONS[name](values()), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["methods", "to", "type", "autograd.Function", "checkpoint"])
def test_gradients_of_round_trips(name):
    """Gradients are rounded by casts only: products with powers of 2 are exact."""
    torch._dynamo.reset()
    found = []
    for function in (FUNCTIONS[name], torch.compile(FUNCTIONS[name], backend="reformer")):
        x = values().requires_grad_()
        function(x).backward(values().exp())
        found.append(x.grad)
    assert found[0].any()
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_beside_autocast():
    """PyTorch merges the user's cast of a tensor with autocast's."""
    torch._dynamo.reset()
    layer = nn.Linear(8, 8)

    def function(x):
        with torch.autocast("cpu", BF16):
            y = layer(x * 4)
        return y, lost(x)

    x = values().requires_grad_()
    _, found = torch.compile(function, backend="reformer")(x)
    torch.testing.assert_close(found, lost(values()), rtol=0, atol=0)


@pytest.mark.parametrize("is_written", [False, True])
def test_casts_of_autocast(is_written, monkeypatch):
    """Autocast's casts may be dropped in both passes, unless the user wrote the same cast."""

    layer = nn.Linear(8, 8)

    def function(x):
        with torch.autocast("cpu", BF16):
            return layer(x.exp().bfloat16() if is_written else x.exp())

    for executable in executables(function, values().requires_grad_(), monkeypatch=monkeypatch):
        casts = [each for each in executable.graph.operations if ir.is_cast(each)]
        assert casts and any(each.rounds for each in casts) == is_written
