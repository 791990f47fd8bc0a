"""Concatenations in the order in which they are copied (joint_graph/cat_in_order.py)."""

import pytest
import torch
from marks import needs_aten
from torch.fx.experimental.proxy_tensor import make_fx

from torch_reformer.compiler.joint_graph.cat_in_order import cat_in_order


def stack(parts):
    """A stack as PyTorch decomposes it."""
    return torch.cat(parts).view(len(parts), *parts[0].shape)


def heads_inside(x):
    """The gradient of a matrix product of queries, keys and values [2, 4, 3, 5]."""
    return stack([x, x * 2, x + 1]).permute(1, -2, 0, 2, -1).contiguous().view(2, 3, -1)


def second_dimension(x):
    return torch.cat([x, x * 2], 1).view(2, 2, 4, 15).permute(2, 0, 3, 1).contiguous()


def parts_that_lie_apart(x):
    return stack([x.transpose(1, 2), x.transpose(1, 2) * 2]).permute(1, 2, 0, 3, 4).contiguous()


def parts_without_views(x):
    """The view merges dimensions that are not adjacent in the parts."""
    parts = [x.transpose(1, 3), x.transpose(1, 3) * 2]
    return torch.cat(parts).view(2, 2, -1).permute(1, 2, 0).contiguous()


def other_boundaries(x):
    """Three rows of two parts of three."""
    return torch.cat([x[:, :3], x[:, 1:]], 1).view(2, 3, 2, 15).permute(0, 2, 1, 3).contiguous()


def unequal_parts(x):
    return torch.cat([x[:, :1], x[:, 1:]], 1).view(2, 2, 2, 15).permute(0, 2, 1, 3).contiguous()


def read_twice(x):
    both = stack([x, x * 2])
    return both.permute(1, 3, 0, 2, 4).contiguous() + both.sum()


def of_two_types(x):
    return stack([x, x.double()]).permute(1, 3, 0, 2, 4).contiguous()


def empty(x):
    return stack([x[:0], x[:0] * 2]).permute(1, 3, 0, 2, 4).contiguous()


CASES = {  # copies that are left
    heads_inside: 0,
    second_dimension: 0,
    parts_that_lie_apart: 0,
    parts_without_views: 1,
    other_boundaries: 1,
    unequal_parts: 1,
    read_twice: 1,
    of_two_types: 1,
    empty: 0,
}


@pytest.mark.parametrize("function", CASES)
def test_copies(function):
    x = torch.randn(2, 4, 3, 5)
    graph = make_fx(function, tracing_mode="fake")(x)
    cat_in_order(graph)
    graph.graph.lint()
    assert len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)) == CASES[function]
    result, expected = graph(x), function(x)
    assert torch.equal(result, expected) and result.stride() == expected.stride()


@needs_aten
@pytest.mark.parametrize("function", CASES)
def test_plans(function):
    torch._dynamo.reset()
    x = torch.randn(2, 4, 3, 5)
    assert torch.equal(torch.compile(function, backend="reformer")(x), function(x))
