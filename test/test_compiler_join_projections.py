"""Queries, keys and values by one product (pre_grad/join_projections.py). Plans do so for GPUs; here they do for the
CPU, too."""

import copy

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn

from torch_reformer import training_step
from torch_reformer.compiler.pre_grad import join_projections

pytestmark = needs_aten
WIDTH, HEAD = 64, 16


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch):
    monkeypatch.setattr(join_projections, "_DEVICES", {"cpu"})
    torch._dynamo.reset()
    torch.manual_seed(0)


class Attention(nn.Module):
    """Attention of two layers. kind: what is done besides."""

    def __init__(self, kind="", bias=True, shared=1, width=WIDTH):
        super().__init__()
        self.kind, self.shared, narrow = kind, shared, width // shared
        for i in range(2):
            self.add_module(f"q{i}", nn.Linear(width, width, bias))
            self.add_module(f"k{i}", nn.Linear(width, narrow, bias and kind != "no bias of keys"))
            self.add_module(f"v{i}", nn.Linear(width, narrow, bias))
            self.add_module(f"out{i}", nn.Linear(width, width))
        self.norm = nn.LayerNorm(HEAD)
        if kind == "frozen":
            self.q0.requires_grad_(False)

    def forward(self, x, other):
        for i in range(2):
            q, k, v = (
                getattr(self, f"{name}{i}")(other if self.kind == "of another" and name != "q" else x) for name in "qkv"
            )
            if self.kind == "written":
                q.mul_(2)
            kept = (q, k, v) if self.kind == "given" else ()
            if self.kind == "viewed":
                q = q.view(-1).view(x.shape)
            q, k, v = (each.unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (q, k, v))
            if self.kind == "normed":
                q, k = self.norm(q), self.norm(k)
            if self.kind == "rotated":
                q, k = (
                    each * 0.6 + torch.cat([-each[..., HEAD // 2 :], each[..., : HEAD // 2]], -1) * 0.8
                    for each in (q, k)
                )
            if self.shared > 1:
                k, v = (each.repeat_interleave(self.shared, 1) for each in (k, v))
            x = x + getattr(self, f"out{i}")(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return (x, *kept)


def results(function, model, dtype):
    x, other = (torch.randn(3, 12, 64, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(2))
    x, other = (each.detach().to(dtype).requires_grad_() for each in (x, other))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        x_out, *kept = function(x, other)
    tensors = [each for each in (x, other, *model.parameters()) if each.requires_grad]
    grads = torch.autograd.grad(x_out.double().square().mean(), tensors, allow_unused=True)
    return [x_out.detach(), *(each.detach() for each in kept), *(each for each in grads if each is not None)]


def products(report) -> int:
    return sum(line.kind in ("aten::addmm", "aten::mm") for line in report.lines)


@pytest.mark.parametrize(
    ("kind", "options", "forward"),
    [
        ("", {}, 4),
        ("", {"bias": False}, 4),
        ("", {"shared": 2}, 4),
        ("rotated", {}, 4),
        ("normed", {}, 4),
        ("of another", {}, 6),
        ("no bias of keys", {}, 6),
        ("frozen", {}, 5),
        ("written", {}, 8),
        ("viewed", {}, 8),
        ("given", {}, 6),
    ],
)
def test_as_pytorch(kind, options, forward):
    """Errors are at most eager's, and there are as few products as can be. Of layers whose results the caller gets, or
    that are written to, each has its own."""
    model = Attention(kind, **options)
    wide = copy.deepcopy(model).double()
    reports = []
    compiled = torch.compile(model, backend="reformer", options={"report": reports.append})
    exact, eager = results(wide, wide, torch.float64), results(model, model, torch.float32)
    found = results(compiled, model, torch.float32)
    for ours, theirs, expected in zip(found, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        error, allowed = ((each.double() - expected).norm() for each in (ours, theirs))
        assert error <= 1.5 * allowed + 1e-3 * expected.norm()
    assert products(reports[0]) == forward


WRITES = {
    "input": lambda x, layer: x.add_(1),
    "view of it": lambda x, layer: x.view(-1).mul_(-1),
    "slice of it": lambda x, layer: x.__setitem__((slice(None), 0), 3.0),
    "weight": lambda x, layer: layer.weight.mul_(-1),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_between(name):
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def function(x):
        x = x * 1
        q = layers[0](x)
        WRITES[name](x, layers[1])
        k, v = layers[1](x), layers[2](x)
        return F.scaled_dot_product_attention(*(each.unflatten(-1, (4, 16)).transpose(1, 2) for each in (q, k, v)))

    weight, x = layers[1].weight.detach().clone(), torch.randn(3, 12, 64)
    results = []
    for each in (function, torch.compile(function, backend="reformer")):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            layers[1].weight.copy_(weight)
            results.append(each(x))
    torch.testing.assert_close(*results, rtol=0.05, atol=0.05)


CAST = {
    "transposed": lambda x, a, b: x @ torch.cat([a[:8], b[:8]]).t().bfloat16(),
    "of columns, viewed": lambda x, a, b: x @ torch.cat([a, b], 1).view(32, 16).bfloat16().t(),
    "two dimensions": lambda x, a, b: torch.cat([a, b]).view(16, 32).bfloat16(),
    "whole": lambda x, a, b: x @ torch.cat([a, b]).bfloat16().t(),
    "of nothing": lambda x, a, b: x @ torch.cat([a, b[:0], b]).bfloat16().t(),
    "read twice": lambda x, a, b: x @ (both := torch.cat([a, b])).bfloat16().t() + both.sum(),
    "of columns": lambda x, a, b: x @ torch.cat([a, b], 1).bfloat16(),
}


@pytest.mark.parametrize("name", CAST)
def test_casts_of_concatenations(name):
    x, a, b = torch.randn(12, 16).bfloat16(), torch.randn(16, 16), torch.randn(16, 16)
    found, expected = (function(x, a, b) for function in (torch.compile(CAST[name], backend="reformer"), CAST[name]))
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)


def test_without_autocast():
    """Parameters that are not cast do not lie side by side."""
    model, reports = Attention(), []
    compiled = torch.compile(model, backend="reformer", options={"report": reports.append})
    x = torch.randn(3, 12, 64)
    torch.testing.assert_close(compiled(x, x), model(x, x))
    assert products(reports[0]) == 8


@pytest.mark.parametrize(("width", "forward"), [(16, 4), (48, 4), (80, 4), (144, 4)])
def test_sizes_whose_biases_have_gaps(width, forward):
    """Where the casts of biases are packed; they are copied."""
    model, reports = Attention(width=width), []
    compiled = torch.compile(model, backend="reformer", options={"report": reports.append})
    x = torch.randn(3, 12, width)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x, x), model(x, x), rtol=0.05, atol=0.05)
    assert products(reports[0]) == forward


def test_weights_with_gaps():
    """Parts of 60 elements would begin at multiples of 64."""
    layers = nn.ModuleList(nn.Linear(6, 10, bias=False) for _ in range(3))
    reports = []

    def function(x):
        q, k, v = (layer(x)[:, None, :, :8] for layer in layers)
        return F.scaled_dot_product_attention(q, k, v)

    x = torch.randn(3, 12, 6)
    compiled = torch.compile(function, backend="reformer", options={"report": reports.append})
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), function(x), rtol=0.05, atol=0.05)
    assert products(reports[0]) == 3


def test_casts_lie_side_by_side():
    """One operator casts all parameters; no other copies them, and they are saved as one tensor."""
    model, reports, saved = Attention(), [], []

    def noted(tensor):
        saved.append(tensor)
        return tensor

    compiled = torch.compile(model, backend="reformer", options={"report": reports.append})
    x = torch.randn(3, 12, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(noted, lambda each: each):
        compiled(x, x)
    kinds = [line.kind for line in reports[0].lines]
    assert kinds.count("casts") <= 2 and "aten::cat" not in kinds  # of the parameters, and of what is small
    casts = [each for each in saved if each.dtype == torch.bfloat16 and each.numel() >= 8 * WIDTH * WIDTH]
    assert len(casts) == 1 and not any(each.shape == (3 * WIDTH, WIDTH) for each in saved)


def test_gradients_accumulate():
    """Gradients of joined parameters are slices of one tensor; each is the parameter's own."""
    model = Attention()
    compiled = torch.compile(model, backend="reformer")
    x = torch.randn(3, 12, 64)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            compiled(x, x)[0].square().mean().backward()
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.q0.weight.grad.zero_()
    assert all(
        torch.equal(one, parameter.grad)
        for one, parameter in zip(found, model.parameters(), strict=False)
        if parameter is not model.q0.weight and parameter.grad is not None
    )
    model.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            model(x, x)[0].square().mean().backward()
    expected = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    largest = max(each.norm() for each in expected)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 0.05 * other.norm() + 1e-3 * largest


def test_whole_steps():
    """The losses of whole steps are eager's."""
    losses = []
    for is_ours in (False, True):
        torch.manual_seed(0)
        model = Attention()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        x = torch.randn(3, 12, 64)

        def loss_of(x, model=model):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x, x)[0].float().square().mean()

        if is_ours:
            step = training_step(model, lambda model, x, loss_of=loss_of: loss_of(x), optimizer)
            losses.append([float(step(x)) for _ in range(5)])
            continue
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = loss_of(x)
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss))
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=0.02, atol=1e-3)
    assert losses[0][0] > 1.2 * losses[0][-1]
