"""Operators on expanded tensors that work on one copy (pre_grad/postpone_expands.py)."""

import math

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn

from torch_reformer.compiler import pipeline
from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten
BATCH = 3


@pytest.fixture
def graphs(monkeypatch):
    """Dynamo's graphs as they are before autograd sees them."""
    found, pre_grad = [], pipeline.pre_grad

    def noted(module):
        pre_grad(module)
        found.append(module)

    monkeypatch.setattr("torch_reformer.compiler.backend.pre_grad", noted)
    torch._dynamo.reset()
    torch.manual_seed(0)
    return found


class Positions(nn.Module):
    """ConViT's scores of positions, and its gate."""

    def __init__(self):
        super().__init__()
        self.layer, self.gate = nn.Linear(3, 2), nn.Parameter(torch.randn(2))
        self.register_buffer("places", torch.randn(1, 5, 6, 3))

    def forward(self, x):
        scores = self.layer(self.places.expand(len(x), -1, -1, -1)).permute(0, 3, 1, 2).softmax(dim=-1)
        gate = self.gate.view(1, -1, 1, 1).sigmoid()
        mixed = (1 - gate) * x.softmax(-1) + gate * scores
        mixed /= mixed.sum(-1, keepdim=True)
        return mixed


class Latent(nn.Module):
    """A learned query that pools tokens (timm's AttentionPoolLatent)."""

    def __init__(self):
        super().__init__()
        self.latent, self.query, self.norm = nn.Parameter(torch.randn(1, 4, 8)), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        query = self.query(self.norm(self.latent.expand(x.shape[0], -1, -1)))
        query = query.reshape(x.shape[0], 4, 2, 4).transpose(1, 2)
        keys = x.unflatten(1, (2, -1))[..., :4]
        return F.scaled_dot_product_attention(query, keys, keys)


class Several(nn.Module):
    """An expansion in two dimensions, and another one in one of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.first, self.second = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(BATCH, 1, 6))

    def forward(self, x):
        first, second = self.first.expand(BATCH, 5, 6), self.second.expand(-1, 5, -1)
        return F.gelu(self.layer(first)) * x[..., :6] + torch.softmax(first + second, 2) - self.layer(second).exp()


def sizes_of_layers(graph):
    """Sizes of the results of linear layers and softmaxes in Dynamo's graph."""
    kinds = ("linear", "softmax", "layer_norm")
    names = ((node, str(getattr(node.target, "__name__", node.target))) for node in graph.graph.nodes)
    return [tuple(node.meta["example_value"].shape) for node, name in names if name in kinds]


def check(model, *inputs):
    """Results and gradients, and strides and types of results, as PyTorch's."""
    inputs = [each.requires_grad_(each.is_floating_point()) for each in inputs]
    expected, found = model(*inputs), torch.compile(model, backend=reformer)(*inputs)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found.stride() == expected.stride() and found.dtype == expected.dtype
    leaves = [each for each in (*inputs, *model.parameters()) if each.requires_grad]
    gradient = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(each, leaves, gradient) for each in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
        assert one.stride() == other.stride()
    return found


def test_scores_of_positions(graphs):
    check(Positions(), torch.randn(BATCH, 2, 5, 6))
    assert sizes_of_layers(graphs[0]) == [(1, 5, 6, 2), (1, 2, 5, 6), (BATCH, 2, 5, 6)]


def test_a_query_of_an_attention(graphs):
    check(Latent(), torch.randn(BATCH, 10, 8))
    assert sizes_of_layers(graphs[0]) == [(1, 4, 8), (1, 4, 8)]


def test_several_dimensions(graphs):
    check(Several(), torch.randn(BATCH, 5, 7))
    assert sizes_of_layers(graphs[0]) == [(1, 1, 6), (BATCH, 5, 6), (BATCH, 1, 6)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_special_values(bad, graphs):
    model = Positions()
    model.places[0, 1, 2, 0] = bad
    check(model, torch.randn(BATCH, 2, 5, 6))


def without_gradient(x, w):
    with torch.no_grad():
        e = x.expand(BATCH, -1, -1)
    return F.linear(e, w)


def in_place_by_place(function):
    def run(e, w):
        y = F.linear(e, w)
        z = function(y, True)
        return y.reshape(-1, 6).sin() + z.reshape(-1, 6) * 2

    return run


KEPT = {  # operators that see all copies, or whose results are written to
    "written": lambda e, w: F.linear(e, w).add_(1),
    "a view is written": lambda e, w: F.linear(e, w).transpose(1, 2).mul_(2),
    "written behind a row": lambda e, w: _written_row(F.linear(e, w)),
    "written by relu": in_place_by_place(F.relu),
    "written by silu": in_place_by_place(F.silu),
    "a weight of all copies": lambda e, w: F.linear(e[:, 0], weight=e[:, 1]) * w.sum(),
    "no copy": lambda e, w: F.linear(e[:0], w) + F.linear(e[:1, 0].expand(0, -1), w)[:, None],
    "random": lambda e, w: F.dropout(e, 1.0, True) + 0 * w.sum(),
    "softmax over the copies": lambda e, w: torch.softmax(e, 0) * w.sum(),
    "sum over the copies": lambda e, w: e.sum(0) * w.sum(),
    "normalised with the copies": lambda e, w: F.layer_norm(e, (BATCH, 4, 6)) * w.sum(),
    "another weight for each copy": lambda e, w: e * torch.arange(1.0, BATCH + 1).view(-1, 1, 1) * w.sum(),
    "a layer along the copies": lambda e, w: F.linear(e.permute(1, 2, 0), w[:, :BATCH]),
}


def _written_row(x):
    x[1] = 0
    return x


class Of(nn.Module):
    def __init__(self, function, expanded=lambda source: source.expand(BATCH, -1, -1)):
        super().__init__()
        self.function, self.expanded = function, expanded
        self.source, self.weight = nn.Parameter(torch.randn(1, 4, 6)), nn.Parameter(torch.randn(6, 6))

    def forward(self):
        return self.function(self.expanded(self.source), self.weight)


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_behind_the_expansion(name, graphs):
    check(Of(KEPT[name]))
    assert not any(1 in sizes for sizes in sizes_of_layers(graphs[0]))


MOVED = {
    "a result": lambda e, w: F.linear(e, w),
    "results of both": lambda e, w: F.linear(e, w) + e,
    "then viewed": lambda e, w: F.linear(e, w).view(-1, 6),
    "then cast to its own type and viewed": lambda e, w: F.linear(e, w).float().view(BATCH, 24),
    "then cast": lambda e, w: F.linear(e, w).to(torch.bfloat16).reshape(BATCH * 4, 6),
    "then permuted and viewed": lambda e, w: F.linear(e, w).permute(1, 0, 2).relu().reshape(4, -1),
    "then all to one": lambda e, w: F.linear(e, w).softmax(-1).mean(),
    "a size": lambda e, w: F.linear(e, w) * F.linear(e, w).size(0),
    "then concatenated": lambda e, w: torch.cat([F.linear(e, w), e], 1),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_goes_before_the_expansion(name, graphs):
    check(Of(MOVED[name]))
    assert all(BATCH not in sizes for sizes in sizes_of_layers(graphs[0])[:1])


EXPANSIONS = {
    "expand": lambda x: x.expand(BATCH, 4, 6),
    "expand_as": lambda x: x.expand_as(torch.ones(BATCH, 4, 6)),
    "broadcast_to": lambda x: torch.broadcast_to(x, (BATCH, 4, 6)),
    "repeat": lambda x: x.repeat(BATCH, 1, 1),
}


@pytest.mark.parametrize("name", EXPANSIONS)
def test_expansions(name, graphs):
    check(Of(MOVED["then viewed"], EXPANSIONS[name]))
    assert BATCH not in sizes_of_layers(graphs[0])[0]


def test_a_repeat_of_more_than_one_copy(graphs):
    check(Of(MOVED["then viewed"], lambda x: torch.cat([x, -x]).repeat(BATCH, 1, 1)))
    assert sizes_of_layers(graphs[0]) == [(2 * BATCH, 4, 6)]


def test_a_repeat_whose_source_is_written(graphs):
    """A repeated tensor has memory of its own, which later writes to its source do not reach."""

    def function(x, w):
        x = x * 1
        e = x.repeat(BATCH, 1, 1)
        x.add_(1)
        return F.linear(e, w) + x

    model, compiled = Of(None), torch.compile(function, backend=reformer)
    torch.testing.assert_close(compiled(model.source, model.weight), function(model.source, model.weight))


def test_expansions_without_gradient(graphs):
    model = Of(None)
    leaves = [model.source, model.weight]
    for function in (without_gradient, lambda x, w: without_gradient(x * 2, w)):
        found, expected = (each(*leaves) for each in (torch.compile(function, backend=reformer), function))
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(each.sum(), leaves, allow_unused=True) for each in (found, expected))
        for one, other in zip(*gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other)


def test_an_expansion_to_nothing(graphs):
    model = Of(F.linear, lambda source: source.expand(0, -1, -1))
    found, expected = torch.compile(model, backend=reformer)(), model()
    assert found.shape == expected.shape and found.stride() == expected.stride()


def test_large_gradients_in_half(graphs):
    """Sums of gradients over copies, which fp16 does not hold, are taken behind the layer, as in PyTorch."""
    source, weight = ((torch.randn(*sizes) * 0.02).half().requires_grad_() for sizes in ((1, 4, 6), (6, 6)))
    gradient = (torch.randn(1024, 4, 6) + 100).half()
    function = lambda x, w: F.linear(x.expand(1024, -1, -1), w)  # noqa: E731
    found, expected = (
        torch.autograd.grad(each(source, weight), (source, weight), gradient)
        for each in (torch.compile(function, backend=reformer), function)
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())


def test_layers_of_layers_under_autocast(graphs):
    """A layer reads another one's result, in 16 bits."""
    model = Of(lambda e, w: F.linear(F.gelu(F.linear(e, w)), w) * 2)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = torch.compile(model, backend=reformer)(), model()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert sizes_of_layers(graphs[0]) == [(1, 4, 6), (1, 4, 6)]


def test_without_gradients(graphs):
    model = Positions()
    with torch.no_grad():
        x = torch.randn(BATCH, 2, 5, 6)
        torch.testing.assert_close(torch.compile(model, backend=reformer)(x), model(x))


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(autocast, graphs):
    model, x = Positions(), torch.randn(BATCH, 2, 5, 6)
    with torch.autocast("cpu", autocast):
        found, expected = torch.compile(model, backend=reformer)(x), model(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert found.dtype == expected.dtype
    assert sizes_of_layers(graphs[0])[0] == (1 if autocast == torch.bfloat16 else BATCH, 5, 6, 2)


def test_other_batches(graphs):
    """The second batch has another size: it becomes a symbol, and nothing is postponed."""
    model = Positions()
    function = torch.compile(model, backend=reformer)
    for count in (3, 4, 5):
        x = torch.randn(count, 2, 5, 6)
        torch.testing.assert_close(function(x), model(x))
