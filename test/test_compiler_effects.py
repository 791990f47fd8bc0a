"""Operators that have effects run as often as eager runs them, in their order (compiler/ir/effects.py)."""

import pytest
import torch
from marks import needs_aten
from torch.fx import node as fx_node

pytestmark = needs_aten
NOTES: list = []


@torch.library.custom_op("reformer_test::note", mutates_args=())
def note(name: str, x: torch.Tensor) -> torch.Tensor:
    NOTES.append((name, x.sum().item()))
    return torch.zeros(1)


@note.register_fake
def _(name, x):
    return torch.zeros(1)


@pytest.fixture
def declared():
    operator = torch.ops.reformer_test.note.default
    torch.fx.node.has_side_effect(operator)
    yield
    fx_node._side_effectful_functions.discard(operator)


def function(x):
    y = x.sin()
    note("first", y)
    z = y * 2
    note("second", z)
    note("second", z)  # equal ones, too
    return z + x


def noted(run, *args) -> list:
    NOTES.clear()
    run(*args)
    return [(name, round(value, 4)) for name, value in NOTES]


def test_unused_results(declared):
    torch._dynamo.reset()
    x = torch.rand(3, 4)
    compiled = torch.compile(function, backend="reformer", fullgraph=True)
    expected = noted(function, x)
    assert len(expected) == 3 and noted(compiled, x) == expected and noted(compiled, x) == expected
    torch.testing.assert_close(compiled(x), function(x))


def test_what_was_not_declared():
    """Without has_side_effect such an operator is a pure function, which PyTorch's tracing drops."""
    torch._dynamo.reset()
    assert not noted(torch.compile(function, backend="reformer", fullgraph=True), torch.rand(3, 4))


def test_in_training(declared):
    """Equal calls run once there: AOTAutograd's partition joins equal nodes."""
    torch._dynamo.reset()
    x = torch.rand(3, 4, requires_grad=True)
    compiled = torch.compile(function, backend="reformer", fullgraph=True)
    expected = noted(function, x)
    assert noted(lambda x: compiled(x).sum().backward(), x) == expected[:2]
