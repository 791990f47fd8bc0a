"""Transposing copies that are fused into kernels. Only GPUs' are by default; these tests fuse them on CPUs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from test_compiler_image_orders import COPY, check, counts, images, randn
from torch import nn

from torch_reformer.compiler.codegen.emit_plan import emit_plan
from torch_reformer.compiler.fusion import greedy, inlining, iteration_order
from torch_reformer.compiler.fusion.fuse_transposes import fuse_transposes
from torch_reformer.compiler.ir import graph as ir
from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.lowering import reduced
from torch_reformer.runtime import plan as plans

pytestmark = needs_aten


@pytest.fixture
def transposed(monkeypatch):
    monkeypatch.setattr(iteration_order, "DEVICES", ("cpu",))


def norm(x, scale, shift):
    """Group norm on NCHW memory, as PyTorch computes it on GPUs."""
    return F.silu(F.group_norm(x, 2, scale, shift)).contiguous()


FUNCTIONS = {
    "group norm": (norm, lambda: (images(2, 32, 16, 16), randn(32), randn(32))),
    "of both orders": (
        lambda x, y: (x * y).sigmoid().contiguous() + y,
        lambda: (images(2, 8, 4, 4), randn(2, 8, 4, 4)),
    ),
    "repeated": (
        lambda x, y: (x.unflatten(1, (2, -1)) * y[:, None]).flatten(1, 2),
        lambda: (images(2, 16, 4, 4), randn(2, 8, 4, 4)),
    ),
    "two transposed": (
        lambda x, y, z: x * y + z * x,
        lambda: (images(2, 8, 4, 4), randn(2, 8, 4, 4), randn(2, 8, 4, 4)),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_copies(name, transposed, monkeypatch):
    """Tensors are as if they had more elements than kernels recompute for each other."""
    for module in (greedy, inlining, reduced):
        monkeypatch.setattr(module, "LITTLE", 0)
    function, tensors = FUNCTIONS[name]
    reports = []
    check(function, tensors(), reports)
    assert counts(reports, COPY) == [0, 0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cpus_copy(name):
    function, tensors = FUNCTIONS[name]
    reports = []
    check(function, tensors(), reports)
    assert sum(counts(reports, COPY))


def test_rows_are_copied(transposed):
    """A kernel with per-row reductions has no transposed operands: y and the result are copied once each."""
    reports = []

    def function(x, y):
        z = x * y
        return (z.permute(0, 2, 3, 1).softmax(-1).permute(0, 3, 1, 2) + z).contiguous()

    check(function, (images(2, 8, 4, 4), randn(2, 8, 4, 4)), reports)
    assert counts(reports, COPY) == [2, 0]


@pytest.mark.parametrize("size", [(2, 8, 3, 3), (2, 6, 4, 4), (2, 4, 4, 4)], ids=str)
def test_odd_ones_are_copied(size, transposed):
    """Sizes of which kernels would transpose only a few elements at a time."""
    reports = []
    check(lambda x, y: x * y, (images(*size), randn(*size)), reports)
    assert sum(counts(reports, COPY))


@pytest.mark.parametrize("count", [3, 5])
def test_three_are_read_transposed(count, transposed):
    """At most three transposed inputs: AMD's GPUs have no registers for more."""
    reports = []

    def function(x, *others):
        return sum((x * each for each in others[1:]), x * others[0])

    check(function, (images(2, 8, 4, 4), *(randn(2, 8, 4, 4) for _ in range(count))), reports)
    assert counts(reports, COPY)[0] == count - 3


class Beside(nn.Module):
    """Batch norm whose running statistics are updated by the kernel that writes the transposed copy."""

    def __init__(self, then):
        super().__init__()
        self.conv, self.norm, self.then = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), then

    def forward(self, x):
        return self.then(F.relu(self.norm(self.conv(x)))).square().mean()


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return x + self.layer(x.flatten(2)).view_as(x)


class OverPixels(nn.Module):
    """Attention of two heads over spatial positions."""

    def forward(self, x):
        heads = x.reshape(x.shape[0], 2, 4, 16)
        scores = (heads.transpose(-2, -1) @ heads).softmax(-1)
        return x + (heads @ scores).reshape(x.shape)


STATISTICS = {
    "classifier": lambda: nn.Sequential(nn.Flatten(), nn.Linear(8 * 16, 3)),
    "mixer": Mixer,
    "attention": OverPixels,
}


@pytest.mark.parametrize("name", STATISTICS)
def test_running_statistics(name, transposed):
    """The kernel with transposed operands writes running statistics in place."""
    torch._dynamo.reset()
    model = Beside(STATISTICS[name]()).double().to(memory_format=torch.channels_last)
    own, x = copy.deepcopy(model), images(2, 4, 4, 4)
    for step in (torch.compile(own, backend="reformer"), model):
        step(x).backward()
    for one, other in zip((*own.parameters(), *own.buffers()), (*model.parameters(), *model.buffers()), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(own.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_copy_in_the_order_of_its_source(transposed):
    """There is nothing to transpose."""
    graph, cpu, layout = ir.Graph(), torch.device("cpu"), Layout.row_major((4, 5))
    type = ir.Typed(layout, torch.float32, cpu)
    read = ir.View(graph.give(*type), layout)
    (value,) = graph.add(ir.Map([read], "neg", lambda x: -x), [type])
    made = ir.View(value, layout)
    (copied,) = graph.add(ir.Call(torch.ops.reformer._contiguous.default, (made,), {}), [type])
    graph.outputs = [made, ir.View(copied, layout)]
    fusion = greedy.Fusion(graph)
    fusion.run()
    fuse_transposes(fusion)
    x = torch.randn(4, 5)
    first, second = plans.run(emit_plan(graph, fusion).plan, [x])
    assert torch.equal(first, -x) and torch.equal(second, -x) and first.data_ptr() != second.data_ptr()


def test_recomputed_and_read(transposed):
    """A kernel recomputes the gradient of both means, and reads it transposed from another's memory."""

    def function(x):
        turned = x.permute(3, 1, 2, 0)
        exponential, column = (turned + turned).exp(), turned.select(1, 0).unsqueeze(3)
        means = column.mean(3, keepdim=True)
        return exponential.square().mean() + column.square().mean() + means.square().mean()

    check(function, (randn(256, 1, 1, 64),))
