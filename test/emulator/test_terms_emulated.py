"""Softmaxes over a few terms in kernels that recompute them, emulated, against eager's in fp64."""

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]


def radix(x, scores):
    n, c, h, w = x.shape
    gates = scores.view(n, 1, 2, c // 2).transpose(1, 2).softmax(1).reshape(n, c, 1, 1)
    return (x * gates).view(n, 2, c // 2, h, w).sum(1)


def widened(x, scores):
    """As radix, with terms of terms, read by images of another order."""
    n, c, h, w = x.shape
    gates = scores.float().view(n, 2, c // 2).softmax(1).amax(1) * 2
    return x[:, : c // 2] * gates.to(x.dtype)[:, :, None, None]


@pytest.mark.parametrize("function", [radix, widened])
@pytest.mark.parametrize("channels", [32, 12])
def test_softmaxes_of_terms(function, channels):
    x = torch.randn(3, channels, 5, 4).contiguous(memory_format=torch.channels_last).bfloat16().requires_grad_()
    scores = torch.randn(3, channels, 1, 1).bfloat16().requires_grad_()
    reports = []
    with emulated(2, 0):
        actual = without_dynamo(function, reports.append)(x, scores)
        grads = torch.randn_like(actual)
        gradients = torch.autograd.grad(actual, (x, scores), grads)
    exact = x.double(), scores.double()
    expected = function(*exact)
    torch.testing.assert_close(actual, expected.bfloat16(), rtol=0.02, atol=0.02)
    for one, other in zip(gradients, torch.autograd.grad(expected, (x, scores), grads.double()), strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=0.02, atol=0.05)
    assert {line.kind for report in reports for line in report.lines} <= {"stitch", "reformer::_contiguous"}
