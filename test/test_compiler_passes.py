"""Passes (compiler/passes) on small graphs: counters, casts, reductions, biases, sums of parts."""

import copy

import pytest
import torch
from compiled_steps import executables, kinds
from expecttest import assert_expected_inline
from marks import needs_aten
from torch import nn

from torch_reformer.compiler import backend
from torch_reformer.compiler.codegen.emit_plan import emit_plan
from torch_reformer.compiler.fusion import greedy
from torch_reformer.compiler.ir import graph as ir
from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.ir.verify import verify
from torch_reformer.compiler.passes.copy_sources_once import copy_sources_once
from torch_reformer.compiler.passes.fold_biases import fold_biases
from torch_reformer.compiler.passes.follow_readers import follow_readers
from torch_reformer.runtime import plan as plans

pytestmark = needs_aten


def test_counters_are_packed(monkeypatch):
    model = nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(3)))
    forward, _ = executables(model, torch.randn(2, 4, 5, 5, requires_grad=True), monkeypatch=monkeypatch)
    assert kinds(forward).count("aten::_foreach_add_.Scalar") == 1
    assert "aten::copy_" not in kinds(forward)
    assert [int(each.num_batches_tracked) for each in model] == [1, 1, 1]


def test_casts_are_packed(monkeypatch):
    model = nn.Sequential(*(nn.Linear(96, 96, bias=False) for _ in range(5)))
    other, x = copy.deepcopy(model), torch.randn(8, 96, requires_grad=True)

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.model(x).float()

    forward, backward = executables(Cast(), x, monkeypatch=monkeypatch)
    assert kinds(forward).count("reformer::_cast_all") == kinds(backward).count("reformer::_cast_all") == 1
    with torch.autocast("cpu", torch.bfloat16):
        y = other(x.detach())
    y.float().square().sum().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("parts", [True, False])
def test_casts_are_one_step(parts):
    """In one allocation or several, with rows of zeros or without."""
    graph = ir.Graph()
    layouts = [Layout((6, 5), (5, 1)), Layout((3, 4, 2, 2), (16, 1, 8, 4)), Layout((), ())]
    wanted = [Layout((8, 5), (5, 1)), *layouts[1:]]
    cpu = torch.device("cpu")
    given = [graph.give(layout, torch.float32, cpu) for layout in layouts]
    casts = ir.Casts([ir.View(value, value.layout) for value in given], "casts", parts)
    results = graph.add(casts, [ir.Typed(layout, torch.bfloat16, cpu) for layout in wanted])
    graph.outputs = [ir.View(value, value.layout) for value in results]
    verify(graph)
    found = greedy.Fusion(graph)
    found.run()
    plan = emit_plan(graph, found).plan
    names = [step.call.name if step.call else step.kind for step in plan.steps]
    empty = "aten::empty_strided"
    assert names == [*([empty, *["view"] * 3] if parts else [empty] * 3), "reformer::_cast_all"]
    sources = [torch.randn(layout.sizes).as_strided(layout.sizes, layout.strides) for layout in layouts]
    first, *others = plans.run(plan, list(sources))
    assert torch.equal(first, nn.functional.pad(sources[0], (0, 0, 0, 2)).bfloat16())
    for one, source, layout in zip(others, sources[1:], layouts[1:], strict=True):
        assert torch.equal(one, source.bfloat16()) and one.stride() == layout.strides
    assert len({each.untyped_storage().data_ptr() for each in (first, *others)}) == (1 if parts else 3)
    assert not parts or all(each.data_ptr() % 16 == first.data_ptr() % 16 for each in others)


@pytest.mark.parametrize("count", range(1, 6))
def test_copies_of_copies(count):
    """Copies that undo each other are left out, but not the last: a result shares no memory with an input."""
    graph, cpu = ir.Graph(), torch.device("cpu")
    value, sizes = graph.give(Layout((3, 4, 5), (20, 5, 1)), torch.float32, cpu), (3, 4, 5)
    for _ in range(count):
        sizes = (sizes[0], sizes[2], sizes[1])
        read = ir.View(value, Layout(sizes, (20, 1, sizes[1])))
        call = ir.Call(torch.ops.reformer._contiguous.default, (read,), {})
        (value,) = graph.add(call, [ir.Typed(Layout.row_major(sizes), torch.float32, cpu)])
    graph.outputs = [ir.View(value, value.layout)]
    copy_sources_once(graph)
    verify(graph)
    assert len(graph.operations) == 1
    found = greedy.Fusion(graph)
    found.run()
    x = torch.randn(3, 4, 5)
    (result,) = plans.run(emit_plan(graph, found).plan, [x])
    assert torch.equal(result, x.transpose(1, 2) if count % 2 else x) and result.data_ptr() != x.data_ptr()


def test_dimensions_of_one_element_have_no_order():
    """A concatenation that interleaves channels reads them by a dimension of one element, of any stride."""
    graph, cpu = ir.Graph(), torch.device("cpu")
    types = [ir.Typed(Layout.row_major(sizes), torch.float32, cpu) for sizes in ((2, 3, 2, 2), (2, 3, 1, 2, 2))]
    one, other = (graph.give(*type) for type in types)
    (value,) = graph.add(ir.Map([ir.View(one, one.layout)], "neg", lambda x: -x), types[:1])
    parts = [ir.View(value, Layout((2, 3, 1, 2, 2), (12, 4, 12, 2, 1))), ir.View(other, other.layout)]
    result = ir.Typed(Layout.row_major((2, 3, 2, 2, 2)), torch.float32, cpu)
    (joined,) = graph.add(ir.Call(torch.ops.aten.cat.default, (parts, 2), {}), [result])
    graph.outputs = [ir.View(joined, joined.layout)]
    follow_readers(graph)
    verify(graph)
    assert value.layout == one.layout
    found = greedy.Fusion(graph)
    found.run()
    x, y = torch.randn(2, 3, 2, 2), torch.randn(2, 3, 1, 2, 2)
    (shuffled,) = plans.run(emit_plan(graph, found).plan, [x, y])
    assert torch.equal(shuffled, torch.cat([-x[:, :, None], y], 2))


@pytest.mark.parametrize("reduce", [torch.sum, torch.amax])
@pytest.mark.parametrize("goes_on", [False, True])
def test_reductions_are_stored_as_they_are_needed(goes_on, reduce):
    """No kernel casts a sum of bf16 numbers, unless a program reads the sum, which it does before rounding."""

    def function(x):
        y = x.sigmoid()
        reduced = reduce(y, 0)
        return (y, reduced, x * reduced) if goes_on else (y, reduced)

    torch._dynamo.reset()
    reports, x = [], torch.randn(960, 32, dtype=torch.bfloat16)
    found = torch.compile(function, backend=backend.reformer, options={"report": reports.append})(x)
    assert any("cast" in line.operations for line in reports[0].lines) == goes_on
    assert len(reports[0].lines) == 1 + goes_on
    for one, other in zip(found, function(x), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_biases_under_autocast():
    """Sums stay as wide as they are computed: no kernel rounds and widens them."""
    reports = []
    model, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), torch.randn(64, 16)

    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    torch._dynamo.reset()
    torch.compile(function, backend=backend.reformer, options={"report": reports.append})(x).float().sum().backward()
    operations = [line.operations for line in reports[1].lines if "sum" in line.operations]
    assert len(operations) == 2 and not [each for each in operations if "cast" in each]
    assert model[0].bias.grad.dtype == torch.float32


def test_results_share_no_memory():
    """Without its two round trips, the second result would be the first one."""

    def function(x):
        y = x * 1.5
        return y, y.bfloat16().float().bfloat16().float()

    torch._dynamo.reset()
    one, other = torch.compile(function, backend=backend.reformer)(torch.randn(200, 100))
    assert one.data_ptr() != other.data_ptr()
    torch.testing.assert_close(one, other, rtol=1e-2, atol=0)


def product_and_bias(device="cuda", used=False, transposed=False, name="add"):
    """Graph of x @ w + b, viewed as [2, 3, 4], as a layer computes it if the rows of its input are not adjacent."""
    graph, dtype, device = ir.Graph(), torch.bfloat16, torch.device(device)

    def view(value, sizes=None, strides=None):
        return ir.View(value, Layout(sizes, strides) if sizes else value.layout)

    given = [((6, 5), (5, 1)), ((5, 4), (4, 1)), ((4,), (1,))]
    x, w, b = (graph.give(Layout(*each), dtype, device) for each in given)
    call = ir.Call(torch.ops.aten.mm.default, (view(x), view(w)), {})
    (product,) = graph.add(call, [ir.Typed(Layout((6, 4), (4, 1)), dtype, device)])
    sizes, strides = ((3, 2, 4), (4, 12, 1)) if transposed else ((2, 3, 4), (12, 4, 1))
    operands = [view(product, sizes, strides), view(b, sizes, (0, 0, 1))]
    add = ir.Map(operands, name, lambda x, y: x + y)
    (result,) = graph.add(add, [ir.Typed(Layout(sizes, strides if not transposed else (8, 4, 1)), dtype, device)])
    graph.outputs = [view(result), *([view(product)] if used else [])]
    return graph


def test_biases_join_products():
    graph = product_and_bias()
    fold_biases(graph)
    verify(graph)
    assert_expected_inline(
        str(graph),
        """\
given %0: bfloat16[6,5]/[5,1]
given %1: bfloat16[5,4]/[4,1]
given %2: bfloat16[4]/[1]
%3: bfloat16[6,4]/[4,1] = aten::addmm(%2, %0, %1)
gives %3[2,3,4]/[12,4,1]""",
    )


@pytest.mark.parametrize(
    "options", [{"device": "cpu"}, {"used": True}, {"transposed": True}, {"name": "add[3]"}], ids=str
)
def test_biases_that_stay(options):
    graph = product_and_bias(**options)
    before = str(graph)
    fold_biases(graph)
    assert str(graph) == before


class Growing(nn.Module):
    """Each convolution reads the results of all before it, whose gradients are sums of parts."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 * (i + 1), 8, 3, padding=1) for i in range(4))

    def forward(self, x):
        found = [x]
        for conv in self.convs:
            found.append(conv(torch.cat(found, 1)).relu())
        return torch.cat(found, 1)


def test_gradients_of_parts_are_added_where_they_are():
    """One kernel computes the gradient of each convolution's result: no part is copied, and no partial sum stored."""
    reports = []
    torch._dynamo.reset()
    model, x = Growing().to(memory_format=torch.channels_last), torch.randn(2, 8, 40, 40, requires_grad=True)
    x = x.to(memory_format=torch.channels_last)
    run = torch.compile(model, backend=backend.reformer, options={"report": reports.append})
    run(x).square().sum().backward()
    kinds = [line.kind for line in reports[1].lines]
    assert not {"aten::add.Tensor", "reformer::_contiguous"} & set(kinds)
    assert kinds.count("stitch") <= 6


class Normed(nn.Module):
    """Each convolution reads the normed concatenation of the results of all before it, as in a DenseNet."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 * (i + 1), 8, 3, padding=1, bias=False) for i in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 * (i + 1)) for i in range(4))

    def forward(self, x):
        found = [x]
        for conv, norm in zip(self.convs, self.norms, strict=False):
            found.append(conv(norm(torch.cat(found, 1)).relu()))
        return self.norms[-1](torch.cat(found, 1))


def test_moments_of_what_was_concatenated():
    """A convolution computes the moments of its result, and no concatenation is read for moments."""
    reports = []
    torch._dynamo.reset()
    model = Normed().double().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 12, 12, dtype=torch.double).to(memory_format=torch.channels_last).requires_grad_()
    states = copy.deepcopy(model), model
    run = torch.compile(states[0], backend=backend.reformer, options={"report": reports.append})
    results = []
    for own, call in zip(states, (run, model), strict=True):
        found = call(x)
        gradients = torch.autograd.grad(found.square().sum(), [x, *own.parameters()])
        results.append([found, *gradients, *own.buffers()])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    with_moments = [line.kind for line in reports[0].lines if "moments" in line.operations]
    assert with_moments.count("conv") == 3 and with_moments.count("stitch") <= 2
