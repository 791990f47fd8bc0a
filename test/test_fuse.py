"""fuse(model) compiles it in place and changes only the kernels."""

import copy
import io
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
import training_models
import two_processes
from marks import needs_aten
from torch import nn
from torch.func import functional_call, grad
from torch.utils.checkpoint import checkpoint
from training_models import conv_norm, relative_error, step

from torch_reformer import functional, fuse
from torch_reformer.compiler.cli import planned
from torch_reformer.compiler.runtime import run_graph
from torch_reformer.runtime import aten

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="a graph runs without a plan")
        yield
    torch._dynamo.reset()


def images(n=2, size=12):
    return torch.randn(n, 3, size, size, dtype=torch.float64)


def small():
    """A model with PyTorch's own forward."""
    return nn.Sequential(*conv_norm(3, 8), nn.Conv2d(8, 8, 3, 2, 1), nn.Flatten(), nn.Linear(8 * 36, 4)).double()


def same(found, expected, x):
    """Compare results, gradients and buffers, in training and in evaluation."""
    for training in (True, False):
        outcomes = []
        for model in (found.train(training), expected.train(training)):
            model.zero_grad()
            input = x.clone().requires_grad_()
            y = model(input)
            y.square().sum().backward()
            gradients = {name: each.grad for name, each in model.named_parameters()}
            outcomes.append([y.detach(), input.grad, gradients, dict(model.named_buffers())])
        torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize(
    "name, channels_last",
    [("resnet", False), ("resnet", True), ("mobilenet", True), ("convnext", True), ("vit", False), ("decision", False)],
)
def test_training_steps_and_evaluation(name, channels_last):
    model, (x, classes) = training_models.make(name)
    model, x = model.double(), x.double()
    fused = copy.deepcopy(model)
    report = fuse(fused, channels_last)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
        assert all(
            parameter.is_contiguous(memory_format=torch.channels_last)
            for parameter in fused.parameters()
            if parameter.dim() == 4
        )
    for _ in range(2):
        model.zero_grad(), fused.zero_grad()
        assert relative_error(step(fused, fused, [x, classes]), step(model, model, [x, classes])) < 1e-9
    torch.testing.assert_close(dict(fused.named_buffers()), dict(model.named_buffers()))
    model.eval(), fused.eval()
    with torch.no_grad():
        torch.testing.assert_close(fused(x, classes), model(x, classes))
    assert len(report.reports) >= 3 and report.reports[0].lines


def test_autocast():
    torch.manual_seed(0)
    model, x = small().float(), torch.randn(8, 3, 12, 12)
    fused = copy.deepcopy(model)
    fuse(fused)
    for each in (model, fused):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(each(x), torch.arange(8) % 4)
        loss.backward()
    assert all(each.grad.dtype == torch.float32 for each in fused.parameters())
    actual, expected = ([parameter.grad for parameter in of.parameters()] for of in (fused, model))
    assert relative_error(actual, expected) < 0.05


def test_what_it_says(monkeypatch):
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)), images()
    done = fuse(model.double())
    assert str(done) == "nothing has run compiled yet" and not done.reports
    monkeypatch.setattr(aten, "missing", "there is no library")
    assert str(done) == "nothing is planned: there is no library"
    monkeypatch.undo()
    y = model(x)
    y.sum().backward()
    forward, backward = done.reports
    count = len(forward.lines) + len(backward.lines)
    assert str(done) == f"2 graphs planned so far: {count} kernels and calls\n\n{forward}\n\n{backward}"
    model(x).sum().backward()
    assert len(done.reports) == 2
    model.eval()(x)
    assert len(done.reports) > 2
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    done = fuse(model)
    with torch.no_grad():
        model(x)
    assert str(done).startswith("1 graph planned so far: 1 kernels and calls\n\n")


def test_names_and_state_stay():
    model, expected = small(), small()
    before = [name for name, _ in model.named_modules()], list(dict(model.named_parameters())), list(model.state_dict())
    parameters, kind = list(model.parameters()), type(model)
    fuse(model)
    after = [name for name, _ in model.named_modules()], list(dict(model.named_parameters())), list(model.state_dict())
    assert before == after and type(model) is kind
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    for source, target in ((expected, model), (model, expected)):
        with torch.no_grad():
            source[0].weight.mul_(2)
        target.load_state_dict(source.state_dict())
        same(model, expected, images())


def through_a_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_a_file])
def test_copies_are_not_compiled(copied):
    """As with nn.Module.compile(), a copy is not compiled; it is a separate model, and may be fused."""
    model, expected = small(), small()
    expected.load_state_dict(model.state_dict())
    done = fuse(model)
    model(images())
    planned = len(done.reports)
    other = copied(model)
    expected.load_state_dict(model.state_dict())
    same(other, expected, images())
    assert len(done.reports) == planned
    again = fuse(other)
    same(other, expected, images())
    assert len(done.reports) == planned and len(again.reports) >= 3


def test_fused_twice():
    """The second call replaces the first one's compilation."""
    model = small()
    expected = copy.deepcopy(model)
    first = fuse(model)
    same(model, expected, images())
    planned = len(first.reports)
    second = fuse(model, mode="default")
    same(model, expected, images())
    assert len(first.reports) == len(second.reports) == planned


def test_a_part_and_then_the_whole():
    model = nn.Sequential(small()[:4], nn.AdaptiveAvgPool2d(1))
    expected = copy.deepcopy(model)
    part = fuse(model[0])
    whole = fuse(model)
    same(model, expected, images())
    assert whole.reports and not part.reports
    model[0](images())
    assert part.reports


def test_parts_alone():
    """Modules around the fused one stay PyTorch's."""
    model = nn.Sequential(small()[:4], nn.AdaptiveAvgPool2d(1))
    expected = copy.deepcopy(model)
    done = fuse(model[0])
    same(model, expected, images())
    assert done.reports


def test_many_models(monkeypatch):
    """No model counts towards PyTorch's limit of compilations of a function, and each model has sizes of its own."""
    monkeypatch.setattr(run_graph, "Dynamic", None)
    for i in range(torch._dynamo.config.recompile_limit + 2):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).double()
        expected = copy.deepcopy(model)
        done = fuse(model)
        model.eval(), expected.eval()
        with torch.no_grad():
            x = images(i + 2)
            torch.testing.assert_close(model(x), expected(x))
        assert len(done.reports) == 1


def test_sizes_that_change():
    model = small()
    expected = copy.deepcopy(model)
    fuse(model)
    for n in (2, 3, 2):
        same(model, expected, images(n))


class Broken(nn.Module):
    """A model with a part that is never compiled."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    @torch.compiler.disable
    def aside(self, x):
        return self.second(x)

    def forward(self, x):
        return F.relu(self.norm(self.aside(F.relu(self.first(x)))))


def test_what_is_left_to_python(monkeypatch):
    """The convolutions of an uncompiled part are this package's; the rest is compiled, in several graphs."""
    calls, conv2d = [], functional.conv2d

    def counted(*arguments):
        if not torch.compiler.is_compiling():
            calls.append(arguments[1].shape)
        return conv2d(*arguments)

    model = Broken().double()
    expected = copy.deepcopy(model)
    done = fuse(model)
    monkeypatch.setattr(functional, "conv2d", counted)
    same(model, expected, images())
    assert calls == [(4, 4, 3, 3)] * 2
    assert len(done.reports) >= 4
    kinds = [line.kind for report in done.reports for line in report.lines]
    assert kinds.count("conv") == 1  # training and evaluation share the graph of the first convolution


def test_hooks_are_called():
    """Hooks of the model itself are called, too, if they are added later."""
    model = small()
    expected = copy.deepcopy(model)
    for each in (model, expected):
        each[0].register_forward_hook(lambda module, arguments, result: 2 * result)
        each.register_forward_pre_hook(lambda module, arguments: (arguments[0] + 1,))
    fuse(model)
    same(model, expected, images())
    for each in (model, expected):
        each.register_forward_hook(lambda module, arguments, result: result.sin())
    same(model, expected, images())


def test_modules_that_are_exchanged():
    model = small()
    expected = copy.deepcopy(model)
    fuse(model)
    same(model, expected, images())
    for each in (model, expected):
        each[2] = nn.Sigmoid()
    same(model, expected, images())


def test_transforms():
    """torch.func and checkpoints, in evaluation: a checkpoint counts batches twice, with either implementation."""
    model, x = small().eval(), images()
    expected = copy.deepcopy(model)
    fuse(model)
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss(of):
        return lambda parameters: functional_call(of, parameters, (x,)).square().sum()

    torch.testing.assert_close(grad(loss(model))(parameters), grad(loss(expected))(parameters))
    results = []
    for each in (model, expected):
        given = x.clone().requires_grad_()
        checkpoint(each, given, use_reentrant=False).square().sum().backward()
        results.append([given.grad, [parameter.grad for parameter in each.parameters()]])
    torch.testing.assert_close(*results)


def test_planned():
    """The command `plan` shows the modules as they are written."""
    model = small()
    expected = planned(copy.deepcopy(model), (images(),))
    done = fuse(model)
    assert planned(model, (images(),)) == expected and not done.reports
    model(images())
    assert done.reports


def test_export():
    model = small().eval()
    fuse(model)
    model(images())
    torch.testing.assert_close(torch.export.export(model, (images(),)).module()(x := images()), model(x))


def test_lazy_layers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5)).double()
    done = fuse(model)
    expected = copy.deepcopy(model)
    x = images()
    model(x), expected(x)
    expected.load_state_dict(model.state_dict())
    same(model, expected, x)
    assert done.reports


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead"])
def test_modes(mode):
    model = small()
    expected = copy.deepcopy(model)
    done = fuse(model, mode=mode)
    same(model, expected, images())
    assert done.reports


def test_another_mode():
    model = small()
    with pytest.raises(ValueError, match="backend 'reformer': mode must be one of .*, got 'fastest'"):
        fuse(model, mode="fastest")
    assert type(model[0]) is nn.Conv2d and model._compiled_call_impl is None


def test_import_leaves_the_compiler_alone():
    code = "import sys, torch_reformer; print([name for name in sys.modules if 'torch_reformer.compiler' in name])"
    code += "; print('torch._dynamo.backends.common' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Under DistributedDataParallel gradients and statistics equal those of the model without fuse()."""
    context = torch.multiprocessing.spawn(two_processes.train, (str(tmp_path),), nprocs=2, join=False)
    end = time.monotonic() + 120
    while not context.join(timeout=1):
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            raise TimeoutError("the processes did not end")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for results in found:
        for name in ("vgg", "resnet"):
            torch.testing.assert_close(results[name, True], results[name, False])
    torch.testing.assert_close(found[0]["vgg", True], found[1]["vgg", True])

    torch.manual_seed(0)
    model = training_models.vgg().double()
    model(two_processes.data()).square().mean().backward()
    torch.testing.assert_close({name: p.grad for name, p in model.named_parameters()}, found[0]["vgg", True][0])
