"""Gradients of slices that together are the whole, which are concatenated, and those of rotary embeddings."""

import math

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from torch_reformer.compiler.joint_graph.cat_slices import cat_slices

pytestmark = needs_aten
aten = torch.ops.aten


def between_zeros(part, like, dim, start, end, step=1):
    return torch.slice_scatter(torch.full(like.shape, 0.0, dtype=like.dtype), part, dim, start, end, step)


def halves(x, dim=-1):
    first, second = x.chunk(2, dim)
    return between_zeros(second, x, dim, 0, second.shape[dim]), between_zeros(-first, x, dim, second.shape[dim], None)


def added_between(x):
    one, other = halves(x)
    return (one + x) + other


def added_before(x):
    one, other = halves(x)
    return other + (x + one)


def of_pads(x):
    return F.pad(x[..., :3], (0, 5)) + F.pad(x[..., 3:8], (3, 0))


TAKEN = {
    "columns": lambda x: torch.add(*halves(x)[::-1]),
    "lines": lambda x: torch.add(*halves(x, 1)),
    "unequal": lambda x: between_zeros(x[:, :1], x, 1, 0, 1) + between_zeros(x[:, 1:] * 2, x, 1, 1, 9),
    "added between": added_between,
    "added before": added_before,
    "pads": of_pads,
}
LEFT = {
    "a gap": lambda x: between_zeros(x[..., :3], x, -1, 0, 3) + between_zeros(x[..., 4:], x, -1, 4, None),
    "overlapping": lambda x: between_zeros(x[..., :5], x, -1, 0, 5) + between_zeros(x[..., 4:], x, -1, 4, None),
    "steps": lambda x: between_zeros(x[..., ::2], x, -1, 0, None, 2) + between_zeros(x[..., 1::2], x, -1, 1, None, 2),
    "ones": lambda x: torch.slice_scatter(torch.ones_like(x), x[..., :4], -1, 0, 4) + halves(x)[1],
    "two dimensions": lambda x: between_zeros(x[:, :2], x, 1, 0, 2) + halves(x)[1],
    "read twice": lambda x: (lambda one, other: (one + other) * one)(*halves(x)),
    "other types": lambda x: halves(x)[0] + halves(x.double())[1],
    "a factor": lambda x: torch.add(*halves(x), alpha=2),
    "pads with ones": lambda x: F.pad(x[..., :4], (0, 4), value=1.0) + F.pad(x[..., 4:], (4, 0)),
    "nothing": lambda x: torch.add(*halves(x[:0])) if x.shape[0] > 9 else halves(x[..., :0])[0] + 1,
}


def traced(function, x):
    return make_fx(function, tracing_mode="fake")(x)


def values():
    x = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0))
    x[0, 0, :2], x[1, 1], x[2, 0, 5], x[3, 3, 1] = torch.tensor([math.nan, math.inf]), -0.0, -math.inf, math.nan
    return x


@pytest.mark.parametrize("name", [*TAKEN, *LEFT])
def test_graphs(name):
    """Taken or left, each number stays the same, its sign included."""
    function, x = (TAKEN | LEFT)[name], values()
    module = traced(function, x)
    cat_slices(module)
    module.graph.lint()
    module.recompile()
    assert bool(module.graph.find_nodes(op="call_function", target=aten.cat.default)) == (name in TAKEN)
    assert bool(module.graph.find_nodes(op="call_function", target=aten.slice_scatter.default)) <= (name in LEFT)
    found, expected = module(x), function(x)
    assert found.stride() == expected.stride() and torch.equal(found.signbit(), expected.signbit())
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def rotated(q, k, cosine, sine, wide):
    def one(x):
        x = x.transpose(1, 2)
        kept, x = x.dtype, x.float() if wide and x.dtype != torch.float64 else x
        first, second = x.chunk(2, -1)
        return (x * cosine + torch.cat([-second, first], -1) * sine).to(kept)

    return one(q), one(k)


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize("sizes", [(2, 7, 3, 16), (1, 1, 1, 2), (3, 5, 2, 6), (0, 4, 2, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rotary_embeddings(dtype, sizes, wide):
    """Heads of queries and keys, [batch, tokens, heads, columns]. The gradient is one kernel, as is the forward."""
    generator = torch.Generator().manual_seed(1)
    tables = [torch.randn(sizes[1], sizes[3], generator=generator).to(dtype) for _ in range(2)]
    inputs = [torch.randn(sizes, generator=generator).to(dtype).requires_grad_() for _ in range(2)]
    weights = [torch.randn(sizes, generator=generator).transpose(1, 2) for _ in range(2)]

    def results(run, inputs, tables):
        found = run(*inputs, *tables, wide)
        loss = sum((each * weight.to(each.dtype)).sum() for each, weight in zip(found, weights, strict=True))
        return [*found, *torch.autograd.grad(loss, inputs)]

    reports = []
    ours = results(without_dynamo(rotated, reports.append), inputs, tables)
    theirs = results(rotated, inputs, tables)
    exact = results(rotated, [each.detach().double().requires_grad_() for each in inputs], [t.double() for t in tables])
    for found, eager, expected in zip(ours, theirs, exact, strict=True):
        assert found.dtype == dtype and (found.stride() == eager.stride() or not eager.numel())
        error, allowed = ((each.double() - expected).norm() for each in (found, eager))
        assert error <= 1.5 * allowed + 1e-14 * expected.norm()
    kinds = [line.kind for report in reports for line in report.lines]
    if sizes[0] == 2:
        assert kinds == ["stitch"] * 2


def test_nan_stays_in_its_half():
    x, weight = torch.randn(3, 4, 8, requires_grad=True), torch.ones(3, 4, 8)
    weight[1, 2, 5] = math.nan

    def function(x, weight):
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1) * weight

    (found,) = torch.autograd.grad(without_dynamo(function, lambda report: None)(x, weight).sum(), x)
    assert found.isnan().nonzero().tolist() == [[1, 2, 1]]


def test_sums_with_numbers_of_sizes():
    torch._dynamo.reset()

    def function(x):
        return x.sin() + x.numel()

    x = torch.randn(4, 6, requires_grad=True)
    found = torch.compile(function, backend="reformer", dynamic=True)(x)
    torch.testing.assert_close(found, function(x))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x), (x.cos(),))
