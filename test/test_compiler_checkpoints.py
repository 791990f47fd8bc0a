"""Attention in activation checkpoints is planned and rewritten as elsewhere."""

import copy

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_reformer.compiler.pre_grad import join_projections

pytestmark = needs_aten


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))

    def attend(self, x):
        q, k, v = (each(x).unflatten(-1, (4, 16)).transpose(1, 2) for each in (self.q, self.k, self.v))
        rows = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return x + self.out(rows.transpose(1, 2).flatten(2))

    def forward(self, x):
        return checkpoint(self.attend, x, use_reentrant=False)


def step(function, model, x):
    x = x.detach().requires_grad_()
    loss = function(x).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


def lines(reports) -> list[str]:
    return [line.kind for report in reports for line in report.lines]


@pytest.mark.parametrize("context", ["train", "autocast"])
@pytest.mark.parametrize("joins", [False, True])
def test_attention(joins, context, monkeypatch):
    """No state of a generator is saved, and queries, keys and values can be one product there, too."""
    if joins:
        monkeypatch.setattr(join_projections, "_DEVICES", {"cpu"})
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, reports = nn.Sequential(Block(), Block()), []
    own, x = copy.deepcopy(model), torch.randn(2, 12, 64)
    compiled = torch.compile(own, backend="reformer", options={"report": reports.append})
    with torch.autocast("cpu", torch.bfloat16, enabled=context == "autocast"):
        found, expected = step(compiled, own, x), step(model, model, x)
    tolerance = {"train": 1e-4, "autocast": 5e-2}[context]
    largest = max(each.abs().max().item() for each in expected[1:])  # the gradients of the keys' biases are about 0
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one, right, rtol=tolerance, atol=tolerance * largest)
    assert not [kind for kind in lines(reports) if "rng_state" in kind]
    products = [kind for kind in lines(reports[:1]) if kind.startswith(("aten::addmm", "aten::mm"))]
    assert len(products) == (4 if joins and context == "autocast" else 8)


def test_attention_with_dropout():
    """The backward draws the forward's numbers again."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Block(0.5).double()
    x = torch.randn(2, 12, 64, dtype=torch.float64)
    compiled = torch.compile(model, backend="reformer")

    def loss(x, seed=3):
        torch.manual_seed(seed)
        return compiled(x).sum()

    x.requires_grad_()
    (grad,) = torch.autograd.grad(loss(x), x)
    direction = torch.randn_like(x)
    with torch.no_grad():
        along = (loss(x + 1e-6 * direction) - loss(x - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((grad * direction).sum(), along, rtol=1e-5, atol=1e-5)
