"""Concatenations in the order of memory in which they are read."""

import pytest
import torch
from against_eager import differences, outcome, without_dynamo
from gpu_rules import as_on_gpus
from marks import needs_aten

from torch_reformer.compiler import pipeline
from torch_reformer.compiler.passes import PASSES, order_concats

pytestmark = needs_aten


def channels(x, w):
    """Parts of channels of images that a product reads, in channels_last but for one."""
    a, b, c = (x @ w.t()).permute(0, 3, 1, 2).split((8, 8, 3), 1)
    return a.sin() * c.sum(1, keepdim=True) + b * c[:, :1]


def heads(x, w):
    """Attention between channels: heads of tokens, transposed."""
    n, h, t, c = x.shape
    a, b, d = (x.view(n, h * t, c) @ w.t()).view(n, h * t, 3, 4, -1).permute(2, 0, 3, 4, 1).unbind(0)
    return (a.exp() @ b.exp().mT).softmax(-1) @ d


def pairs(x, w):
    """Two parts of several heads each."""
    n, h, t, c = x.shape
    heads = (x.view(n, h * t, c) @ w.t()).view(n, h * t, 8, 2).permute(2, 0, 3, 1)
    first, second = heads.split((6, 2))
    return (first.exp() * second[:1].sin()).sum(0)


FUNCTIONS = {"channels": (channels, 19), "heads": (heads, 24), "pairs": (pairs, 16)}


def test_kernels_write_permuted_parts():
    """The gradients of heads, which lie apart in the product's order of memory."""

    def tokens(x, w):
        n, h, t, c = x.shape
        a, b, d = (x.view(n, h * t, c) @ w.t()).view(n, h * t, 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (a.exp() @ b.exp().mT).softmax(-1)
        return (a.sin() + b.cos()).square().sum() + (weights @ d.tanh()).sum()

    reports = []
    with as_on_gpus():
        assert not differences(tokens, arguments(24))
        outcome(without_dynamo(tokens, reports.append), arguments(24))
    assert not {"aten::cat", "reformer::_contiguous"} & {line.kind for line in reports[-1].lines}


def stack(parts):
    """A stack as PyTorch decomposes it."""
    return torch.cat(parts).view(len(parts), *parts[0].shape)


COPIES = {
    "heads inside": lambda x: stack([x, x * 2, x + 1]).permute(1, -2, 0, 2, -1).contiguous().view(2, 3, -1),
    "second dimension": lambda x: torch.cat([x, x * 2], 1).view(2, 2, 4, 15).permute(2, 0, 3, 1).contiguous(),
    "parts that lie apart": lambda x: stack([x.mT, x.mT * 2]).permute(1, 2, 0, 3, 4).contiguous(),
    "merged dimensions": lambda x: torch.cat([x.mT, x.mT * 2]).view(2, 2, -1).permute(1, 2, 0).contiguous(),
    "other boundaries": lambda x: torch.cat([x[:, :3], x[:, 1:]], 1).view(2, 3, 2, 15).permute(0, 2, 1, 3).contiguous(),
    "unequal parts": lambda x: torch.cat([x[:, :1], x[:, 1:]], 1).view(2, 2, 2, 15).permute(0, 2, 1, 3).contiguous(),
    "read twice": lambda x: (lambda both: both.permute(1, 3, 0, 2, 4).contiguous() + both.sum())(stack([x, x * 2])),
    "copied twice": lambda x: stack([x, x.exp()]).permute(1, 3, 0, 2, 4).contiguous().mT.contiguous(),
    "of two types": lambda x: stack([x, x.double()]).permute(1, 3, 0, 2, 4).contiguous(),
    "halved": lambda x: stack([x, x * 2]).permute(1, 3, 0, 2, 4).contiguous().half(),
    "empty": lambda x: stack([x[:0], x[:0] * 2]).permute(1, 3, 0, 2, 4).contiguous(),
    "of one dimension": lambda x: torch.cat([x.new_empty(0), x, x]).permute(3, 1, 2, 0).contiguous(),
    "numbers": lambda x: stack([x.long(), x.long() * 2]).permute(1, 3, 0, 2, 4).contiguous() * x.sum(),
    "slices": lambda x: torch.cat([x[..., 1:], x[..., :2]], -1).permute(3, 0, 2, 1).contiguous(),
    "written afterwards": lambda x: torch.cat([x, x * 2]).permute(3, 1, 2, 0).contiguous().mul_(x.sum()),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_concatenations(name):
    x = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with as_on_gpus():
        assert not differences(COPIES[name], (x,))


def arguments(columns, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 4, 4, 8), (columns, 8)
    return tuple(torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values(name, dtype):
    function, columns = FUNCTIONS[name]
    with as_on_gpus():
        assert not differences(function, arguments(columns, dtype))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_copies(name, monkeypatch):
    """No more is copied, and fewer bytes move than without the pass."""
    function, columns = FUNCTIONS[name]
    moved = []
    for passes in (PASSES, [each for each in PASSES if each is not order_concats]):
        monkeypatch.setattr(pipeline, "PASSES", passes)
        reports = []
        with as_on_gpus():
            outcome(without_dynamo(function, reports.append), arguments(columns))
        backward = reports[-1]
        moved.append((backward.bytes, [line.kind for line in backward.lines].count("reformer::_contiguous")))
    assert moved[0][0] < moved[1][0] and moved[0][1] <= moved[1][1], moved
