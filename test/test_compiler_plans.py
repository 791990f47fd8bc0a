"""What the compiler makes of small graphs: regions, recomputation, writes in place, passes."""

import copy
import dataclasses
import functools

import pytest
import torch
import training_models
from expecttest import assert_expected_inline
from marks import needs_aten
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_reformer import nn as nn_of_ours
from torch_reformer.compiler import backend, capture, execute, grouping, ir, measure, regions
from torch_reformer.compiler.execute import Executable
from torch_reformer.compiler.lower import lower
from torch_reformer.compiler.merge import merge
from torch_reformer.compiler.passes import PASSES
from torch_reformer.compiler.passes.fold_biases import fold_biases
from torch_reformer.compiler.plan import planned
from torch_reformer.compiler.prepare import rehearse
from torch_reformer.runtime import plan as plans

pytestmark = needs_aten


def executables(model, *inputs, monkeypatch) -> list[Executable]:
    """Those of a training step, forward first; every graph is one, after each pass."""
    found = []

    def executable(module, report):
        graph, _ = capture.capture(module)
        for change in PASSES:
            ir.verify(graph)
            change(graph)
        ir.verify(graph)
        found.append(Executable(module, report))
        return found[-1]

    torch._dynamo.reset()
    monkeypatch.setattr(backend, "executable", executable)
    torch.compile(model, backend=backend.reformer)(*inputs).square().sum().backward()
    return found


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


def kinds(executable: Executable) -> list[str]:
    """The steps of a plan but views."""
    steps = [step.call.name if step.call else step.kind for step in executable.plan.steps]
    return [kind for kind in steps if kind not in ("view", "aten::empty_strided")]


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


def test_report():
    reports = []
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(2, 4, 34, 34, requires_grad=True)
    torch.compile(model, backend=backend.reformer, options={"report": reports.append})(x).sum().backward()
    forward, backward = reports
    assert_expected_inline(
        str(dataclasses.replace(forward, planned=None)),  # which is there where SciPy is
        """\
   MB read   written
      0.04      0.07  conv: conv, moments
      0.07      0.07  stitch: sub, mul, mul, add, relu, rsqrt, add, add
      0.07      0.05  aten::max_pool2d_with_indices
      0.00      0.00  aten::_foreach_add_.Scalar
4 kernels and calls move 0.3 MB; one by one 21 kernels and calls move 0.9 MB""",
    )
    assert [line.kind for line in backward.lines].count("stitch") == 2
    image = 2 * 8 * 32 * 32 * 4
    convolution = forward.lines[0]
    assert convolution.written == image + 2 * 8 * 4 and convolution.read == x.numel() * 4 + 8 * 4 * 9 * 4
    assert 2 * forward.bytes < sum(line.read + line.written for line in forward.alone)


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
    """In one memory or not, with rows of zeros or without."""
    graph = ir.Graph()
    layouts = [ir.Layout((6, 5), (5, 1)), ir.Layout((3, 4, 2, 2), (16, 1, 8, 4)), ir.Layout((), ())]
    wanted = [ir.Layout((8, 5), (5, 1)), *layouts[1:]]
    cpu = torch.device("cpu")
    given = [graph.give(layout, torch.float32, cpu) for layout in layouts]
    casts = ir.Casts([ir.View(value, value.layout) for value in given], "casts", parts)
    results = graph.add(casts, [ir.Typed(layout, torch.bfloat16, cpu) for layout in wanted])
    graph.outputs = [ir.View(value, value.layout) for value in results]
    ir.verify(graph)
    found = grouping.Grouping(graph)
    found.run()
    plan = lower(graph, found).plan
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


@pytest.mark.parametrize("reduce", [torch.sum, torch.amax])
@pytest.mark.parametrize("goes_on", [False, True])
def test_reductions_are_stored_as_they_are_needed(goes_on, reduce):
    """No kernel casts a sum of bf16 numbers, unless a program goes on with it, which takes it not rounded."""

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


def product_and_bias(device="cuda", used=False, transposed=False, name="add"):
    """x @ w + b, seen as [2, 3, 4], as a layer leaves it whose input's rows are not adjacent."""
    graph, dtype, device = ir.Graph(), torch.bfloat16, torch.device(device)

    def view(value, sizes=None, strides=None):
        return ir.View(value, ir.Layout(sizes, strides) if sizes else value.layout)

    given = [((6, 5), (5, 1)), ((5, 4), (4, 1)), ((4,), (1,))]
    x, w, b = (graph.give(ir.Layout(*each), dtype, device) for each in given)
    call = ir.Call(torch.ops.aten.mm.default, (view(x), view(w)), {})
    (product,) = graph.add(call, [ir.Typed(ir.Layout((6, 4), (4, 1)), dtype, device)])
    sizes, strides = ((3, 2, 4), (4, 12, 1)) if transposed else ((2, 3, 4), (12, 4, 1))
    operands = [view(product, sizes, strides), view(b, sizes, (0, 0, 1))]
    add = ir.Map(operands, name, lambda x, y: x + y)
    (result,) = graph.add(add, [ir.Typed(ir.Layout(sizes, strides if not transposed else (8, 4, 1)), dtype, device)])
    graph.outputs = [view(result), *([view(product)] if used else [])]
    return graph


def test_biases_join_products():
    graph = product_and_bias()
    fold_biases(graph)
    ir.verify(graph)
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
    """Each convolution sees what all before it gave: the gradient of that is a sum of parts."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 * (i + 1), 8, 3, padding=1) for i in range(4))

    def forward(self, x):
        found = [x]
        for conv in self.convs:
            found.append(conv(torch.cat(found, 1)).relu())
        return torch.cat(found, 1)


def test_gradients_of_parts_are_added_where_they_are():
    """One kernel for each convolution's: no part is copied, and no sum of two stored."""
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
    """Each convolution sees the normed sum of what all before it gave, as in a DenseNet."""

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
    """Those of each convolution's result come with it, and no concatenation is read for them."""
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


def test_text_and_verifier():
    graph = ir.Graph()
    x = graph.give(ir.Layout((2, 3), (3, 1)), torch.float32, torch.device("cpu"))
    whole = ir.View(x, x.layout)
    (y,) = graph.add(ir.Map([whole], "neg", lambda value: -value), [(x.layout, x.dtype, x.device)])
    graph.outputs = [ir.View(y, ir.Layout((3, 2), (1, 3))), 7]
    assert_expected_inline(
        str(graph),
        """\
given %0: float32[2,3]/[3,1]
%1: float32[2,3]/[3,1] = neg(%0)
gives %1[3,2]/[1,3], 7""",
    )
    ir.verify(graph)
    graph.outputs = [ir.View(y, ir.Layout((3, 3), (1, 3)))]
    with pytest.raises(ValueError, match="beyond the memory"):
        ir.verify(graph)
    graph.operations.clear()
    graph.outputs = [ir.View(y, y.layout)]
    with pytest.raises(ValueError, match="the result needs %1 before it is made"):
        ir.verify(graph)


def test_regions_have_room():
    """No region takes more tensors than a kernel does."""
    graph = ir.Graph()
    layout, kind = ir.Layout((100, 100), (100, 1)), (torch.float32, torch.device("cpu"))
    views = [ir.View(graph.give(layout, *kind), layout) for _ in range(2 * regions.MOST_INPUTS + 9)]
    total = views[0]
    for view in views[1:]:
        (made,) = graph.add(ir.Map([total, view], "add", lambda a, b: a + b), [(layout, *kind)])
        total = ir.View(made, layout)
    graph.outputs = [total]
    found = grouping.Grouping(graph)
    found.run()
    merge(found)
    assert len(found.regions) > 2
    assert all(len(each.reads) <= regions.MOST_INPUTS for each in found.regions.values())


@pytest.mark.parametrize("name", ["resnet", "efficientnet", "unet", "gpt"])
def test_each_step_can_be_rehearsed(name, monkeypatch):
    """By itself, on memory of the sizes and types that the plan has: so GPU kernels are compiled before it runs."""
    torch._dynamo.reset()
    run = []
    monkeypatch.setattr(execute, "prepare", lambda lowered: run.append((lowered, rehearse(lowered))))
    model, inputs = training_models.make(name)
    torch.compile(model, backend=backend.reformer)(*inputs).backward()
    steps = [step for lowered, _ in run for step in lowered.plan.steps]
    assert len(run) == 2 and sum(step.kind in ("conv2d", "stitch", "conv2d_grads") for step in steps) > 1


def images_and_repeated_elements(x, small):
    """The product of repeated elements lies in NCHW if nobody settles it; the sum would be a call of PyTorch's."""
    return x + small.expand(x.shape) * 2


def test_what_is_next_to_images_lies_as_they_do():
    reports = []
    x, small = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 1, 1)
    torch._dynamo.reset()
    run = torch.compile(images_and_repeated_elements, backend=backend.reformer, options={"report": reports.append})
    torch.testing.assert_close(run(x, small), images_and_repeated_elements(x, small))
    assert not [line for line in reports[0].lines if line.kind.startswith("aten::")]


@pytest.mark.parametrize(
    "seen",
    [
        lambda t: t,
        lambda t: t.view(2, -1),
        lambda t: t.as_strided((2, 60), (60, 1)),
        lambda t: t.permute(3, 2, 1, 0).contiguous(),
        lambda t: t[1:, :, 2:],
        lambda t: nn.functional.scaled_dot_product_attention(t, t, t),
        lambda t: t.cumsum(1),
    ],
)
def test_results_lie_as_they_did(seen):
    def function(x, small):
        product = small.expand(x.shape) * 2
        return x + product, seen(product)

    torch._dynamo.reset()
    x, small = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 1, 1)
    found, expected = torch.compile(function, backend=backend.reformer)(x, small), function(x, small)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


def test_two_batch_norms_and_their_sum():
    """One kernel behind both convolutions; backward one for the four sums and one for both gradients."""

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


def test_fake_tensors(monkeypatch):
    """They have no memory to compute with."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    forward, _ = executables(model, x, monkeypatch=monkeypatch)
    with FakeTensorMode() as mode, pytest.raises(ValueError, match="a plan takes plain tensors"):
        forward([mode.from_tensor(each) for each in (model.weight, model.bias, x)])


def test_results_share_no_memory():
    """What is rounded and widened twice would be what it was made of, which is a result, too."""

    def function(x):
        y = x * 1.5
        return y, y.bfloat16().float().bfloat16().float()

    torch._dynamo.reset()
    one, other = torch.compile(function, backend=backend.reformer)(torch.randn(200, 100))
    assert one.data_ptr() != other.data_ptr()
    torch.testing.assert_close(one, other, rtol=1e-2, atol=0)


def reports_of(model, inputs):
    found = []
    torch._dynamo.reset()
    torch.compile(model, backend=backend.reformer, options={"report": found.append})(*inputs).backward()
    return found


def types_cast(model):
    """Its convolutions under autocast."""

    def run(*inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(*inputs)

    return run


@pytest.mark.parametrize("name, autocast", [("resnet", False), ("unet", False), ("convnext", True)])
def test_converted_models_have_the_same_plans(name, autocast):
    """convert() has modules call this package's convolution, which the compiler takes for PyTorch's."""
    model, inputs = training_models.make(name)
    converted = copy.deepcopy(model)
    assert nn_of_ours.convert(converted).converted
    expected, found = (reports_of(types_cast(each) if autocast else each, inputs) for each in (model, converted))
    assert len(expected) == 2 and found == expected
    if not autocast:
        assert planned(converted, tuple(inputs)) == planned(model, tuple(inputs))


@pytest.mark.parametrize(
    "geometry",
    [(), ((2, 1),), ((1, 2), (1, 0), (2, 1)), ((1, 1), (1, 1), (1, 1), 2)],
    ids=["defaults", "stride", "dilation", "groups"],
)
def test_operators_of_this_package(geometry):
    """Called by themselves they become kernels of a plan, too, and so do their own gradients."""
    ops, groups = torch.ops.reformer, geometry[3] if len(geometry) > 3 else 1
    x, w = torch.randn(2, 4, 9, 8).double(), torch.randn(6, 4 // groups, 3, 2).double()
    y = torch.randn_like(ops.conv2d(x, w, None, *geometry))

    def function(x, w, y):
        of_input = ops.conv2d_input_grad(x.shape, w, y, *geometry).square()
        named = dict(zip(("stride", "padding", "dilation", "groups"), geometry, strict=False))
        of_weight = ops.conv2d_weight_grad(w.shape, x, y, **named).square()
        return of_input, of_weight, ops.conv2d_bias_grad(y), ops.conv2d(x, w, **named).sin()

    results, reports = [], []
    torch._dynamo.reset()
    for run in (torch.compile(function, backend=backend.reformer, options={"report": reports.append}), function):
        leaves = [each.clone().requires_grad_() for each in (x, w, y)]
        found = run(*leaves)
        sum(each.sum() for each in found).backward()
        results.append([[each.detach() for each in found], [each.grad for each in leaves]])
    torch.testing.assert_close(*results)
    kinds = [line.kind for report in reports for line in report.lines]
    assert "conv" in kinds and "conv_grads" in kinds and not [kind for kind in kinds if kind.startswith("reformer")]


def test_marks_are_between_groups():
    """Not behind each view that a group of many makes, whose times would be the group's."""
    tensors = [torch.randn(8, 96), *(torch.randn(96, 96) for _ in range(10))]

    def function(x, *weights):
        with torch.autocast("cpu", torch.bfloat16):
            return functools.reduce(nn.functional.linear, weights, x)

    found = []

    def compiled(module, _):
        executable = Executable(module)

        def call(*args):
            times, results = measure.measure(executable, list(args))
            found.append((executable, times))
            return results

        return call

    with torch.no_grad():
        result = backend.compile_graphs(function, compiled)(*tensors)
        torch.testing.assert_close(result, function(*tensors))
    ((executable, times),) = found
    assert times.keys() == executable.lowered.steps.keys() and min(times.values()) > 0
    places = {place for each in executable.lowered.steps.values() for place in (each.start, each.stop)}
    plan = plans.between_steps(executable.plan, torch.ops.reformer._mark.default, places)
    names = [step.call.name if step.call else step.kind for step in plan.steps]
    assert names.count("reformer::_mark") == len(times) + 1
    assert names[0] == names[-1] == "reformer::_mark" and names.count("view") >= 10
    (casts,) = (place for place, name in enumerate(names) if name == "reformer::_cast_all")
    assert names[casts - 1] == "view" and names[casts + 1] == "reformer::_mark"
