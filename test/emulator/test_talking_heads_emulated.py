"""Attention's heads mixed by the GPU's kernels, emulated. Slices of scores share places, and so do rows of weights."""

import pytest
import torch
from marks import needs_aten
from test_compiler_expand_products import TalkingHeads, results

import emulator
from emulator.graphs import emulated
from torch_reformer.compiler.joint_graph import expand_products

pytestmark = [needs_aten, emulator.needed]


@pytest.mark.parametrize(("heads", "batch", "count"), [(4, 2, 20), (3, 1, 33), (8, 2, 17)])
def test_as_eager(heads, batch, count, monkeypatch):
    monkeypatch.setattr(expand_products, "LITTLE", 0)
    torch.manual_seed(0)
    model, x = TalkingHeads(heads), torch.randn(batch, count, 4 * heads, requires_grad=True)
    expected = results(model, model, x)
    with emulated(multiprocessors=3, seed=0):
        found = results(torch.compile(model, backend="reformer"), model, x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
