"""Losses of matrix products in chunks of rows (joint_graph/chunk_losses.py), against eager mode."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.joint_graph import chunk_count, chunk_losses

pytestmark = needs_aten
ROWS, DEPTH, CLASSES = 240, 24, 90


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    """Chunks of few rows, if a loss can be chunked at all; collects how many chunks there are of each loss."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(chunk_count, "LEAST_ROWS", 8)
    monkeypatch.setattr(chunk_count, "_most_in_time", lambda *_: 4)
    monkeypatch.setattr(chunk_count, "_LEAST_SAVED", 0)
    found, run = [], chunk_losses._Chunks.run
    monkeypatch.setattr(
        chunk_losses._Chunks, "run", lambda self, bounds: (found.append(len(bounds)), run(self, bounds))
    )
    return found


def tensors(dtype=torch.float64, rows=ROWS):
    x, weight, bias = torch.randn(rows, DEPTH), torch.randn(CLASSES, DEPTH), torch.randn(CLASSES)
    labels = torch.arange(rows) * 7 % CLASSES
    return [each.to(dtype) for each in (x, weight, bias)], labels


def outcome(loss, given, labels, factor=0.7):
    """The loss, and the gradients of its product with a factor from outside of the graph."""
    given = [each.detach().requires_grad_() for each in given]
    result = loss(*given, labels)
    grads = torch.autograd.grad(result, given, torch.full_like(result, factor), allow_unused=True)
    return [result.detach(), *(grad for grad in grads if grad is not None)]


def compiled(function, **options):
    return torch.compile(function, backend="reformer", options=options)


def scores(x, weight, bias=None):
    return F.linear(x, weight, bias)


def plain(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels)


def with_bias(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight, bias), labels)


def as_sum(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels, reduction="sum")


def each_row(x, weight, bias, labels):
    losses = F.cross_entropy(scores(x, weight), labels, reduction="none")
    mask = (labels % 3 > 0).to(losses.dtype)
    return (losses * mask).sum() / mask.sum()


def smoothed(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels, label_smoothing=0.1)


def ignoring(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), torch.where(labels % 4 == 0, -100, labels))


def ignoring_another(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels, ignore_index=7, label_smoothing=0.2)


def weighted(x, weight, bias, labels):
    weights = torch.linspace(0, 2, CLASSES, dtype=x.dtype)
    return F.cross_entropy(scores(x, weight), torch.where(labels % 4 == 0, -100, labels), weights)


def weighted_sum(x, weight, bias, labels):
    weights = torch.linspace(0, 2, CLASSES, dtype=x.dtype)
    return F.cross_entropy(scores(x, weight), labels, weights, reduction="sum", label_smoothing=0.1)


def with_z_loss(x, weight, bias, labels):
    s = scores(x, weight)
    return F.cross_entropy(s, labels) + 1e-2 * s.logsumexp(-1).square().mean()


def capped(x, weight, bias, labels):
    return F.cross_entropy(3 * torch.tanh(scores(x, weight, bias) / 3), labels)


def of_sequences(x, weight, bias, labels):
    s = scores(x.view(4, -1, DEPTH), weight)
    return F.cross_entropy(s.flatten(0, 1), labels)


def shifted_scores(x, weight, bias, labels):
    s = scores(x.view(12, -1, DEPTH), weight)[:, :-1].contiguous()
    return F.cross_entropy(s.view(-1, CLASSES), labels.view(12, -1)[:, 1:].reshape(-1))


def shifted_labels(x, weight, bias, labels):
    later = F.pad(labels.view(4, -1), (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(scores(x.view(4, -1, DEPTH), weight).view(-1, CLASSES), later.view(-1))


def soft_labels(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), F.one_hot(labels, CLASSES).to(x.dtype) * 0.9 + 0.1 / CLASSES)


def transposed_weight(x, weight, bias, labels):
    return F.cross_entropy(x @ weight.view(DEPTH, CLASSES), labels)


def by_gather(x, weight, bias, labels):
    return -scores(x, weight).log_softmax(-1).gather(-1, labels[:, None]).mean()


def tied(x, weight, bias, labels):
    return F.cross_entropy(scores(x + weight[labels], weight), labels.roll(1))


def written(x, weight, bias, labels):
    """In place, which functionalisation turns into other tensors."""
    s = scores(x, weight)
    s.div_(3).tanh_()
    s = s * 3
    s += bias
    return F.cross_entropy(s, labels)


LOSSES = [plain, with_bias, as_sum, each_row, smoothed, ignoring, ignoring_another, weighted, weighted_sum, with_z_loss]
LOSSES += [capped, of_sequences, shifted_scores, shifted_labels, soft_labels, transposed_weight, tied]
LOSSES += [written]


@pytest.mark.parametrize("factor", [1.0, 0.7])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss, factor, chunks):
    given, labels = tensors()
    found, expected = (outcome(each, given, labels, factor) for each in (compiled(loss), loss))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert chunks and chunks[0] > 1
