"""Casts of parts instead of concatenations, and of slices instead of the whole (joint_graph/cast_parts.py)."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from torch_reformer.compiler.joint_graph.cast_parts import cast_parts

aten = torch.ops.aten


def images(*size, dtype=torch.float32):
    return torch.randn(*size).to(dtype).contiguous(memory_format=torch.channels_last)


def concatenated(x, y):
    return torch.cat([x.sin(), y, x], 1).to(torch.bfloat16)


def truths(x, y):
    return torch.cat([x > 0, y], 1).to(torch.float16), x.sum()


def twice(x, y):
    both = torch.cat([x, y], 1)
    return both.to(torch.bfloat16), both.bfloat16().exp()


def read_elsewhere(x, y):
    both = torch.cat([x, y], 1)
    return both.to(torch.bfloat16), both.exp()


def whole_numbers(x, y):
    return torch.cat([x, (y * 1000).long()], 1).to(torch.bfloat16), y.sum()


def wider(x, y):
    return torch.cat([x, y], 1).double()


def in_another_order(x, y):
    return torch.cat([x, y], 1).to(torch.bfloat16, memory_format=torch.contiguous_format)


def sliced(x, y):
    wide = y.to(torch.bfloat16).float()
    return wide[:, :2].exp() + x[:, :2], wide[:, 4:, ::2] * x[:, 4:, ::2], x.sum()


def sliced_in_memory(x, y):
    wide = y.to(torch.bfloat16).float()
    return wide[:, :2].as_strided((2, 2), (3, 1)).exp(), wide[:, 4:] * 2, x.sum()


def rows_in_memory(x, y):
    """Rows are dense, so nothing but the place of the slice in memory would change."""
    wide = y.to(torch.bfloat16).float()
    return wide[1:].as_strided((2, 2), (2, 1)) + 1, wide[:1] * 2, x.sum()


def copied_from_memory(x, y):
    wide = y.to(torch.bfloat16).float()
    return torch.as_strided_copy(wide[1:], (2, 2), (2, 1), 0) + 1, x.sum()


def sliced_and_whole(x, y):
    wide = y.to(torch.bfloat16).float()
    return wide[:, :2].exp(), wide.exp(), x.sum()


FEWER_BYTES = {
    concatenated: True,
    truths: True,
    twice: True,
    read_elsewhere: False,
    whole_numbers: False,
    wider: False,
    in_another_order: False,
    sliced: True,
    sliced_in_memory: False,
    rows_in_memory: False,
    copied_from_memory: False,
    sliced_and_whole: False,
}


def bytes_of(graph) -> int:
    """Bytes of concatenations, and of casts to a wider type."""
    nodes = graph.graph.find_nodes(op="call_function", target=aten.cat.default)
    casts = graph.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    nodes += [cast for cast in casts if cast.meta["val"].dtype.itemsize > cast.args[0].meta["val"].dtype.itemsize]
    return sum(node.meta["val"].nbytes for node in nodes)


@pytest.mark.parametrize("function", FEWER_BYTES)
def test_graphs(function):
    """The graph's values, strides and fake values are as before."""
    x, y = images(2, 6, 4, 4), images(2, 6, 4, 4)
    graph = make_fx(function, tracing_mode="fake")(x, y)
    before = bytes_of(graph)
    cast_parts(graph)
    graph.graph.lint()
    graph.recompile()
    assert (bytes_of(graph) < before) == FEWER_BYTES[function]
    for node in graph.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        assert node.args[0].meta["val"].shape == node.meta["val"].shape
    for one, other in zip(tree_leaves(graph(x, y)), tree_leaves(function(x, y)), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


@needs_aten
@pytest.mark.parametrize("function", FEWER_BYTES)
def test_values_and_gradients(function):
    x, y = images(2, 6, 4, 4), images(2, 6, 4, 4)
    found = []
    torch._dynamo.reset()
    for run in (function, torch.compile(function, backend="reformer")):  # Dynamo tells the user's casts
        given = [each.clone().requires_grad_() for each in (x, y)]
        results = tree_leaves(run(*given))
        sum(result.float().square().sum() for result in results).backward()
        found.append([*results, *(each.grad for each in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


@needs_aten
@pytest.mark.parametrize("dim", [0, 1])
def test_sizes_that_change(dim):
    def function(x, y):
        return torch.cat([x.sin(), y], dim).to(torch.bfloat16) * 2

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="reformer", dynamic=True)
    for rows in (4, 6, 3):
        x, y = torch.randn(rows, rows, requires_grad=True), torch.randn(rows, rows)
        found, expected = compiled(x, y), function(x, y)
        assert torch.equal(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found.float().sum(), x), torch.autograd.grad(expected.float().sum(), x)
        )


class Decoder(nn.Module):
    """The last level of a U-Net, which concatenates upsampled images and those of its first layer."""

    def __init__(self, mode: str):
        super().__init__()
        self.mode, self.first, self.last = mode, nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(24, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x):
        first = self.first(x).relu()
        low = F.interpolate(self.down(F.max_pool2d(first, 2)).float(), scale_factor=2, mode=self.mode)
        return self.last(torch.cat([low, first], 1)).float().square().mean()


@needs_aten
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_decoder_under_autocast(mode):
    """Its loss and gradients are as close to fp32's as eager mode's, which rounds at other places."""
    torch.manual_seed(0)
    model, x = Decoder(mode).to(memory_format=torch.channels_last), images(2, 3, 16, 16)

    def gradients(step, has_autocast: bool):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=has_autocast):
            step(x).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    exact, eager = gradients(model, False), gradients(model, True)
    compiled = gradients(torch.compile(model, backend="reformer"), True)
    assert (compiled - exact).norm() <= 1.2 * (eager - exact).norm()
