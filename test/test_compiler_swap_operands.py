"""Products whose operands are swapped (joint_graph/swap_operands.py)."""

import pytest
import torch
from fake_strides import check_strides
from marks import needs_aten
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from torch_reformer.compiler.joint_graph.swap_operands import swap_operands

aten = torch.ops.aten


def product(x, y):
    """[6, 3, 5]"""
    return torch.bmm(x.transpose(1, 2), y)


def swapped(x):
    """A transposition as PyTorch decomposes it."""
    return x.permute(*range(x.dim() - 2), -1, -2)


def norm_of_keys(x, y):
    keys = swapped((product(x, y).view(2, 3, 3, 5) * 0.5).double())
    return keys * torch.arange(3.0) - keys.sum(-1, keepdim=True)


def rows_apart_from_columns(x, y):
    return product(x, y).view(2, 3, 3, 5).permute(0, 3, 1, 2) * torch.arange(3.0)


def heads_inside(x, y):
    """A transposed product has no such view."""
    return product(x, y).view(2, 3, 3, 5).permute(0, 3, 1, 2).reshape(2, 5, 9).sin()


def transposed_twice(x, y):
    return swapped(swapped(product(x, y)).exp()) + 1


def read_in_both_ways(x, y):
    keys = product(x, y)
    return swapped(keys) + 1.0, keys * torch.arange(5.0)


def given(x, y):
    return swapped(product(x, y))


def given_after(x, y):
    """A result of the graph keeps its strides."""
    keys = swapped(product(x, y).sin())
    return keys * torch.arange(3.0)


def merged(x, y):
    return product(x, y).view(6, 15).cos()


def unused(x, y):
    return product(x, y).shape[0] * x


CASES = {  # True if the operands are swapped
    norm_of_keys: True,
    rows_apart_from_columns: True,
    heads_inside: False,
    transposed_twice: False,
    read_in_both_ways: False,
    given: False,
    given_after: True,
    merged: False,
    unused: False,
}


@pytest.mark.parametrize("function", CASES)
def test_operands(function):
    inputs = torch.randint(-4, 5, (6, 4, 3)).float(), torch.randint(-4, 5, (6, 4, 5)).float()
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    for _ in range(2):  # the second time nothing is left to swap
        swap_operands(graph)
        graph.graph.lint()
        products = graph.graph.find_nodes(op="call_function", target=aten.bmm.default)
        assert [tuple(node.meta["val"].shape) == (6, 5, 3) for node in products] == [CASES[function]]
    graph.recompile()
    check_strides(graph)
    results, expected = tree_leaves(graph(*inputs)), tree_leaves(function(*inputs))
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


@needs_aten
@pytest.mark.parametrize("function", CASES)
def test_plans(function):
    torch._dynamo.reset()
    inputs = torch.randn(6, 4, 3), torch.randn(6, 4, 5)
    results = tree_leaves(torch.compile(function, backend="reformer")(*inputs))
    for one, other in zip(results, tree_leaves(function(*inputs)), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
