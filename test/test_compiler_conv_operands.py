"""Operands of convolutions that are slices, or in another memory format than the convolution computes in
(lowering/convolution.py)."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.ir.graph import Conv, ConvGrads
from torch_reformer.compiler.runtime.executable import Executable

pytestmark = needs_aten


class Parts(nn.Module):
    """A convolution for each part of the channels, as in MixNet and Res2Net."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(12)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 2 * i + 1, padding=i, bias=i == 1) for i in range(3))

    def forward(self, x):
        parts = F.silu(self.norm(x)).split(4, 1)
        return torch.cat([conv(part) for conv, part in zip(self.convs, parts, strict=True)], 1).square().mean()


class Skip(nn.Module):
    """A biased convolution's result beside another tensor, as in U-Net: its gradient is a slice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(12, 5, 3, padding=1), nn.Conv2d(17, 4, 1)

    def forward(self, x):
        return self.second(torch.cat([x, self.first(x)], 1)).square().mean()


class Expanded(nn.Module):
    """The convolution's gradient repeats one number."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(12, 6, 3)

    def forward(self, x):
        return self.conv(x).sum()


def step(function, model, x):
    model.zero_grad()
    x = x.detach().requires_grad_()
    loss = function(x)
    loss.backward()
    return [loss.detach(), x.grad, *(each.grad.clone() for each in model.parameters())]


@pytest.mark.parametrize("make", [Parts, Skip, Expanded])
@pytest.mark.parametrize("formats", ["images", "weights", "both", "none"])
def test_operands_are_dense(make, formats, monkeypatch):
    torch._dynamo.reset()
    model, x = make().double(), torch.randn(2, 12, 6, 5, dtype=torch.float64)
    if formats in ("weights", "both"):
        model = model.to(memory_format=torch.channels_last)
    if formats in ("images", "both"):
        x = x.to(memory_format=torch.channels_last)
    graphs, made = [], Executable.__init__

    def noted(self, *args):
        made(self, *args)
        graphs.append(self.graph)

    monkeypatch.setattr(Executable, "__init__", noted)
    found = step(torch.compile(model, backend=reformer), model, x)
    torch.testing.assert_close(found, step(model, model, x), rtol=1e-11, atol=1e-12)
    operations = [each for graph in graphs for each in graph.operations]
    convolutions = [each for each in operations if isinstance(each, (Conv, ConvGrads))]
    assert len(convolutions) >= 2 * sum(isinstance(each, nn.Conv2d) for each in model.modules())
    for convolution in convolutions:
        views = convolution.operands
        if isinstance(convolution, ConvGrads):  # of a tensor without gradient, only the size is read
            views = [view for view, is_read in zip(views, (True, *convolution.wanted[::-1]), strict=True) if is_read]
        assert all(view.layout.packed.matches(view.layout) for view in views)
    assert not any("convolution" in each.text() for each in operations)


def test_one_copy_serves_both_gradients():
    """The gradient of a slice is read by the gradients of input and weight, and by the sum for the bias."""
    torch._dynamo.reset()
    model, x, reports = Skip(), torch.randn(2, 12, 6, 5).to(memory_format=torch.channels_last), []
    model = model.to(memory_format=torch.channels_last)
    step(torch.compile(model, backend=reformer, options={"report": reports.append}), model, x)
    copies = [line for line in reports[1].lines if "clone" in str(line) or "_contiguous" in str(line)]
    assert len(copies) <= 1
