"""Copies of copies (joint_graph/copy_sources.py)."""

import pytest
import torch
from marks import needs_aten
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from torch_reformer.compiler.joint_graph.copy_sources import copy_sources


def round_trip(x):
    return (x * 2).transpose(1, 2).contiguous().transpose(1, 2).contiguous().sin()


def another_order(x):
    return (x * 2).transpose(1, 2).contiguous().transpose(0, 1).contiguous().view(-1)


def given(x):
    """The result shares no memory with the input."""
    return x.transpose(1, 2).contiguous().transpose(1, 2).contiguous()


def given_as_a_view(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2).contiguous().view(-1)


def read_elsewhere(x):
    y = (x * 2).transpose(1, 2).contiguous()
    return y.transpose(1, 2).contiguous().sin(), y.cos()


def of_an_input(x):
    """The backward needs the copy, and the input may be written to before it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2).contiguous().sin()


def merged(x):
    """The source has no such view."""
    return (x * 2).transpose(1, 2).contiguous().view(x.shape[0], -1).T.contiguous().sin()


def of_one_element(x):
    y = (x[:, :1] * 2).transpose(1, 2).contiguous()
    return y.transpose(1, 2).contiguous().sin()


def repeated(x):
    return (x * 2).transpose(1, 2).contiguous()[:, :, None].expand(-1, -1, 3, -1).contiguous().sin()


def of_a_place_in_memory(x):
    """What lies there depends on the first copy's order."""
    y = (x * 2).transpose(1, 2).contiguous()
    return y.as_strided((3, 4), (2, 3)).contiguous().sin()


CASES = {  # copies that are left
    round_trip: 0,
    another_order: 1,
    given: 1,
    given_as_a_view: 1,
    read_elsewhere: 1,
    of_an_input: 1,
    merged: 2,
    of_a_place_in_memory: 2,
    of_one_element: 0,
    repeated: 1,
}


@pytest.mark.parametrize("function", CASES)
def test_copies(function):
    x = torch.randn(3, 4, 5)
    graph = make_fx(function, tracing_mode="fake")(x)
    copy_sources(graph)
    graph.graph.lint()
    graph.graph.eliminate_dead_code()
    graph.recompile()
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target is not torch.ops.aten.clone.default:
            mode = node.meta["val"].fake_mode
            with mode:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
                assert node.target(*args, **kwargs).stride() == node.meta["val"].stride()
    assert len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)) == CASES[function]
    result, expected = graph(x), function(x)
    for one, other in zip(
        *([each] if isinstance(each, torch.Tensor) else each for each in (result, expected)), strict=True
    ):
        assert torch.equal(one, other) and one.stride() == other.stride()
        assert one.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@needs_aten
@pytest.mark.parametrize("function", CASES)
def test_gradients(function):
    torch._dynamo.reset()
    x, y = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
    with torch.no_grad():
        y.copy_(x)
    for each, run in ((x, function), (y, torch.compile(function, backend="reformer"))):
        result = run(each)
        sum(one.square().sum() for one in tree_leaves(result)).backward()
    torch.testing.assert_close(y.grad, x.grad)
