"""Values that a backward recomputes from tensors that it reads anyway (joint_graph/rematerialize.py)."""

import copy

import pytest
import torch
from marks import needs_aten
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = needs_aten


class Block(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(8, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), act

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


def compiled(model, *inputs):
    """The compiled model's loss and gradients, and its reports."""
    torch._dynamo.reset()
    reports = []
    run = torch.compile(model, backend="reformer", options={"report": reports.append})
    loss = run(*inputs).square().mean()
    return loss, torch.autograd.grad(loss, list(model.parameters())), reports


def differ(found, expected, tolerance):
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)) > tolerance


@pytest.mark.parametrize("act", [F.relu, F.relu6, F.silu, F.hardswish, F.leaky_relu, F.gelu, torch.sigmoid])
def test_gradients(act):
    torch.manual_seed(0)
    model, x = Block(act).double(), torch.randn(4, 8, 20, 20, dtype=torch.double)
    x[0, 0] = 0
    expected = copy.deepcopy(model)
    loss = expected(x).square().mean()
    found_loss, found, _ = compiled(model, x)
    assert torch.allclose(found_loss, loss, rtol=1e-12)
    assert not differ(found, torch.autograd.grad(loss, list(expected.parameters())), 1e-11)


def test_the_mask_of_relu_follows_from_the_norms_input():
    model, x = Block(F.relu), torch.randn(4, 8, 20, 20)
    elements = 4 * 32 * 20 * 20 * 4
    _, _, (forward, backward) = compiled(model, x)
    # The first kernel reads the result's gradient and the norm's input, and nothing else of that size.
    sums = backward.lines[0]
    assert 2 * elements <= sums.read < 2.1 * elements and sums.written < 0.1 * elements
    assert sum(line.written for line in forward.lines) < 2.1 * elements  # the convolution's result and ReLU's


def test_what_has_two_sources_is_saved():
    """A residual's sum is one tensor to read; to recompute it, its two operands would be read."""

    class Residual(Block):
        def forward(self, x, rest):
            return self.act(self.norm(self.conv(x)) + rest)

    x, rest = torch.randn(4, 8, 20, 20), torch.randn(4, 32, 20, 20)
    elements = rest.nbytes
    _, _, (_, backward) = compiled(Residual(F.relu), x, rest)
    assert backward.lines[0].read < 3.1 * elements


def test_without_a_norm_the_result_is_read():
    """Without a norm nothing reads ReLU's operand, while its result is saved for the next layer's gradient."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    x = torch.randn(512, 64)
    _, _, (forward, _) = compiled(model, x)
    hidden = 512 * 256 * 4
    assert sum(line.written for line in forward.lines if line.kind != "aten::addmm") <= hidden + x.nbytes


def test_checkpoints_stay_as_they_are():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(F.relu).double()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(4, 8, 20, 20, dtype=torch.double, requires_grad=True)
    expected = copy.deepcopy(model)
    expected(x).square().mean().backward()
    _, found, _ = compiled(model, x)
    assert not differ(found, [each.grad for each in expected.parameters()], 1e-11)
