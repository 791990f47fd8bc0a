"""Fusion groups of small graphs, epilogues of convolutions, and limits of a group."""

import pytest
import torch
from compiled_steps import executables, kinds
from expecttest import assert_expected_inline
from marks import needs_aten
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule

from torch_reformer.compiler import backend
from torch_reformer.compiler.fusion import greedy
from torch_reformer.compiler.fusion.greedy import Fusion
from torch_reformer.compiler.fusion.horizontal import fuse_horizontally
from torch_reformer.compiler.fusion.schedule import schedule
from torch_reformer.compiler.fusion.verify import verify
from torch_reformer.compiler.ir import graph as ir
from torch_reformer.compiler.ir import kernel_limits
from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.lowering.from_fx import lower_fx

pytestmark = needs_aten
aten = torch.ops.aten


def test_convolution_batch_norm_and_relu(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    forward, backward = executables(model, x, monkeypatch=monkeypatch)
    assert_expected_inline(
        str(forward.plan),
        """\
given %0, %1, %2, %3, %4, %5, %6
%7, %8 = conv2d(%1, %0, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
%9 = view(%8, sizes=(8,), strides=(1,), offset=0)
%10 = view(%8, sizes=(8,), strides=(1,), offset=8)
%11, %12, %13, %14, %15 = stitch(%7, %9, %10, %5, %6, %3, %4)  # writes %3, %4; frees %3, %4, %6, %9, %10, %14, %15
aten::_foreach_add_.Scalar([%2], 1)  # writes %2; frees %2
%16 = view(%8, sizes=(1, 8, 1, 1), strides=(8, 1, 1, 1), offset=0)  # frees %8
gives %11, %0, %1, %5, %7, %12, %13, %16""",
    )
    # One pass for the two sums, one for the gradient: neither stores the activation's gradient.
    assert_expected_inline(
        str(backward.plan),
        """\
given %0, %1, %2, %3, %4, %5, %6, %7
%8 = view(%6, sizes=(8,), strides=(1,), offset=0)  # frees %6
%9, %10 = stitch(%7, %5, %3, %8)
%11, %12 = stitch(%3, %5, %7, %8, %10, %4, %9, %2)  # frees %2, %3, %4, %5, %7, %8, %10
%13, %14 = conv2d_grads(%11, %1, %0, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)  # frees %0, %1, %11
gives %14, %13, %12, %9""",
    )


def test_a_group_reads_what_a_call_changed_before():
    """Although its first operation comes before the call."""
    graph = Graph()
    with FakeTensorMode():
        changed, other, new = map(graph.placeholder, ("changed", "other", "new"))
        early = graph.call_function(aten.sin.default, (other,))
        written = graph.call_function(aten.copy_.default, (changed, new))
        late = graph.call_function(aten.add.Tensor, (early, written))
        graph.output((late,))
        for node in (changed, other, new, early, written, late):
            node.meta["val"] = torch.empty(100)
    fusion = Fusion(lower_fx(GraphModule({}, graph))[0])
    fusion.run()
    (group,), (call,) = fusion.groups, fusion.extern_calls
    assert len(fusion.groups[group].members) == 2 and schedule(fusion) == [call, group]


def test_a_chain_is_one_kernel(monkeypatch):
    class Chain(nn.Module):
        def forward(self, x, y, z):
            return ((x * y + z).sigmoid() - x.relu()) * 2

    tensors = [torch.randn(4, 300, 40, requires_grad=True) for _ in range(3)]
    forward, backward = executables(Chain(), *tensors, monkeypatch=monkeypatch)
    assert kinds(forward) == ["stitch"] and kinds(backward) == ["stitch"]


def test_a_residual_is_the_convolutions_epilogue(monkeypatch):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x):
            return (self.conv(x) + x).relu()

    forward, backward = executables(Residual(), torch.randn(4, 16, 32, 32, requires_grad=True), monkeypatch=monkeypatch)
    assert kinds(forward) == ["conv2d"]
    # The activation's gradient and the bias's, the convolution's gradients, and the sum of both uses of x.
    assert kinds(backward) == ["stitch", "conv2d_grads", "stitch"]


def test_two_batch_norms_and_their_sum():
    """Forward: one kernel behind both convolutions. Backward: one for the four sums and one for both gradients."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(4, 8, 1, bias=False) for _ in range(2))
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))

        def forward(self, x):
            one, other = (norm(conv(x)) for conv, norm in zip(self.convs, self.norms, strict=True))
            return (one + other).relu()

    reports = []
    torch._dynamo.reset()
    x = torch.randn(8, 4, 40, 40).to(memory_format=torch.channels_last)
    model = Block().to(memory_format=torch.channels_last)
    run = torch.compile(model, backend=backend.reformer, options={"report": reports.append})
    run(x).square().sum().backward()
    forward, backward = ([line.kind for line in each.lines] for each in reports)
    assert forward == ["conv", "conv", "stitch", "aten::_foreach_add_.Scalar"]
    assert backward == ["stitch", "stitch", "conv_grads", "conv_grads"]


def chain(count: int) -> greedy.Fusion:
    """Groups of a graph that alternates element-wise operations and sums over everything."""
    graph = ir.Graph()
    layout, kind = Layout((100, 100), (100, 1)), (torch.float32, torch.device("cpu"))
    x = ir.View(graph.give(layout, *kind), layout)
    for _ in range(count):
        (total,) = graph.add(ir.Reduce("sum", x, (0, 1)), [(Layout((), ()), *kind)])
        spread = ir.View(total, Layout((100, 100), (0, 0)))
        (result,) = graph.add(ir.Map([x, spread], "add", lambda a, b: a + b), [(layout, *kind)])
        x = ir.View(result, layout)
    graph.outputs = [x]
    fusion = greedy.Fusion(graph)
    fusion.run()
    verify(fusion)
    assert len(fusion.groups) > 1
    return fusion


def without_a_group(fusion):
    del fusion.groups[min(fusion.groups)]


def without_inputs(fusion):
    for group in fusion.groups.values():
        group.inputs.clear()


def with_a_cycle(fusion):
    """The first group overwrites what another one reads, which needs the first."""
    first = fusion.groups[min(fusion.groups)]
    (result,) = first.operations[0].results
    first.destinations[result] = ir.View(result, result.layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_group, "no group makes"),
        (without_inputs, "is no input of the group"),
        (with_a_cycle, "groups need each other"),
    ],
)
def test_verifier(change, message):
    fusion = chain(3)
    change(fusion)
    with pytest.raises(ValueError, match=message):
        verify(fusion)


def test_regions_have_room():
    """No group reads more tensors than a kernel supports."""
    graph = ir.Graph()
    layout, kind = Layout((100, 100), (100, 1)), (torch.float32, torch.device("cpu"))
    views = [ir.View(graph.give(layout, *kind), layout) for _ in range(2 * kernel_limits.MOST_INPUTS + 9)]
    total = views[0]
    for view in views[1:]:
        (made,) = graph.add(ir.Map([total, view], "add", lambda a, b: a + b), [(layout, *kind)])
        total = ir.View(made, layout)
    graph.outputs = [total]
    found = greedy.Fusion(graph)
    found.run()
    fuse_horizontally(found)
    assert len(found.groups) > 2
    assert all(len(each.reads) <= kernel_limits.MOST_INPUTS for each in found.groups.values())
