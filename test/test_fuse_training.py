"""Fused models where models go: copies, files, several processes, checkpointing, mixed precision, torch.compile."""

import collections
import copy
import gc
import io
import itertools
import sys
import time
import types
import weakref

import expecttest
import pytest
import torch
import two_processes
from marks import slow
from test_compile import BACKENDS
from test_fuse import (
    ConvNeXt,
    MobileNet,
    ResNet,
    SqueezeExcite,
    StochasticDepth,
    cn_blocks,
    filled,
    images,
    outcome,
    vgg,
)
from torch import nn
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch.func import functional_call, grad
from torch.utils.checkpoint import checkpoint

import torch_reformer
from torch_reformer import fuse


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def through_a_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class Halved(nn.Module):
    """Asks whether it is in training; what is inside is fused."""

    def __init__(self):
        super().__init__()
        self.inner = MobileNet()

    def forward(self, x):
        return self.inner(x) if self.training else self.inner(x) / 2


@pytest.mark.parametrize("copied", [copy.deepcopy, through_a_file])
@pytest.mark.parametrize("make", [ResNet, MobileNet, ConvNeXt, Halved, cn_blocks])
def test_copies(make, copied, monkeypatch):
    """They compute with their own parameters, and so do copies of copies."""
    for name in ("torchvision", "torchvision.ops", StochasticDepth.__module__):  # pickle looks there for the class
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[StochasticDepth.__module__].StochasticDepth = StochasticDepth
    model = filled(make())
    if make is cn_blocks:
        model.eval()  # each call would drop other images
    assert fuse(model).fused
    x = images()
    for times in (1, 2):
        again = copied(model) if times == 1 else copied(copied(model))
        assert again.state_dict().keys() == model.state_dict().keys()
        torch.testing.assert_close(outcome(copy.deepcopy(again), x), outcome(copy.deepcopy(model), x))
        before = model(x)
        with torch.no_grad():
            for parameter in again.parameters():
                parameter.zero_()
        torch.testing.assert_close(model(x), before)
        assert not torch.allclose(again(x), before)


def test_a_model_is_forgotten():
    model = ResNet()
    fuse(model)
    watched = weakref.ref(model.conv1.weight)
    del model
    gc.collect()
    assert watched() is None


def test_state_dict_goes_both_ways():
    model, fused = filled(ResNet()), filled(ResNet())
    fuse(fused)
    for source, target in ((model, fused), (fused, model)):
        with torch.no_grad():
            source.conv1.weight.mul_(2)
        target.load_state_dict(source.state_dict())
        x = images()
        torch.testing.assert_close(target(x), source(x))


def losses(model, forward, steps=4, scaler=None):
    """Trains by momentum: the losses, and what the model's parameters and statistics are afterwards."""
    torch.manual_seed(3)
    x, labels = torch.randn(8, 3, 12, 12), torch.arange(8) % 4
    optimizer, history = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(x).flatten(1)[:, :4].float(), labels)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        history.append(loss.detach())
    return torch.stack(history), model.state_dict()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("make", [ResNet, MobileNet, vgg])
def test_training(make, channels_last):
    results = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = make()
        if fused:
            fuse(model, channels_last)
            first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
            assert first.weight.is_contiguous(memory_format=torch.channels_last) == channels_last
        results.append(losses(model, model))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant):
    """A fused model is checkpointed as a whole, and fused blocks are by a model's forward."""
    model, x = filled(SqueezeExcite(3)), images()
    fuse(model)
    expected = outcome(model, x)
    checkpointed = copy.deepcopy(model)
    x = x.requires_grad_()
    y = checkpoint(checkpointed, x, use_reentrant=use_reentrant)
    y.square().sum().backward()
    torch.testing.assert_close([y.detach(), x.grad], expected[0])
    torch.testing.assert_close({n: p.grad for n, p in checkpointed.named_parameters()}, expected[1])


@pytest.mark.parametrize("make", [ResNet, MobileNet, ConvNeXt, cn_blocks])
def test_mixed_precision(make):
    """Trains as the unfused model does, to bfloat16's accuracy; no gradient is scaled out of range."""
    results = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = make()
        if fused:
            fuse(model)

        def forward(x, model=model):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)

        scaler = torch.amp.GradScaler("cpu", init_scale=1024)
        results.append(losses(model, forward, scaler=scaler)[0])
        assert scaler.get_scale() == 1024
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(*results, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("make", [ResNet, MobileNet, ConvNeXt, cn_blocks])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_data_types_under_autocast(make, dtype):
    """Every module's result has the data type that it had."""
    model = make().eval()
    fused = copy.deepcopy(model)
    fuse(fused)
    x = torch.randn(2, 3, 12, 12)
    with torch.autocast("cpu", dtype), torch.no_grad():
        expected, result = model(x), fused(x)
    assert result.dtype == expected.dtype
    exact = model(x)
    assert (result - exact).square().mean() <= 4 * (expected - exact).square().mean()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [vgg, *slow(ResNet, lambda: cn_blocks(0.0))])
def test_compiled_training(make, backend):
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = make()
        fuse(model)
        forward = torch.compile(model, backend=backend, fullgraph=True) if compiled else model
        results.append(losses(model, forward, 2))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_what_torch_compile_traces(training, monkeypatch):
    """A layer has a few times as many instructions of Python as PyTorch's own, and none that write programs: with them
    it took a second a layer."""
    traced = collections.Counter()

    def step(self, of_torch=InstructionTranslatorBase.step):
        traced["/torch_reformer/program/" in self.f_code.co_filename and self.f_code.co_name != "plain"] += 1
        return of_torch(self)

    monkeypatch.setattr(InstructionTranslatorBase, "step", step)
    counts = []
    for is_fused in (False, True):
        of_models = []
        for layers in (1, 3):
            convolutions = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(layers)]
            products = [(nn.Linear(64, 64), nn.GELU()) for _ in range(layers)]
            model = nn.Sequential(*itertools.chain(*convolutions), nn.Flatten(), *itertools.chain(*products))
            if is_fused:
                fuse(model)
            traced.clear()
            torch.compile(model.train(training), backend="eager", fullgraph=True)(torch.randn(2, 4, 4, 4))
            of_models.append(traced[False])
        counts.append((of_models[1] - of_models[0]) / 2)
    assert traced[True] == 0 and counts[1] < 15 * counts[0]


@pytest.mark.parametrize("make", [cn_blocks, *slow(ResNet)])
def test_a_copy_compiles(make):
    model = filled(make())
    fuse(model)
    x = images()
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    results = []
    for each in (compiled, model):
        torch.manual_seed(1)
        results.append(each(x))
    torch.testing.assert_close(*results)


def test_export():
    model = ResNet().eval()
    fuse(model)
    x = torch.randn(3, 3, 12, 12)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names.count("reformer.conv2d_epilogue.default") == 6 and not any("batch_norm" in name for name in names)
    x = torch.randn(5, 3, 12, 12)
    torch.testing.assert_close(program.module()(x), model(x))


def test_functional_call():
    """Parameters from outside are what the fused forward reads."""
    model = filled(ConvNeXt())
    fused = copy.deepcopy(model)
    fuse(fused)
    x = images()
    parameters = {name: 2 * p.detach() for name, p in model.named_parameters()}

    def loss(module):
        return lambda parameters: functional_call(module, parameters, (x,)).square().sum()

    torch.testing.assert_close(*(grad(loss(module))(parameters) for module in (fused, model)))


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Gradients are those of one process with both halves of the batch, where there is no batch norm; with batch norm
    they and the statistics are those of the unfused model in two processes."""
    context = torch.multiprocessing.spawn(two_processes.train, (str(tmp_path),), nprocs=2, join=False)
    end = time.monotonic() + 60
    while not context.join(timeout=1):
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            raise TimeoutError("the processes did not end")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for results in found:
        for name in ("vgg", "ResNet"):
            torch.testing.assert_close(results[name, True], results[name, False])
    torch.testing.assert_close(found[0]["vgg", True], found[1]["vgg", True])

    torch.manual_seed(0)
    model = vgg().double()
    model(two_processes.data()).square().mean().backward()
    torch.testing.assert_close({name: p.grad for name, p in model.named_parameters()}, found[0]["vgg", True][0])


def test_representation_and_convert():
    model = ResNet()
    before = repr(model)
    fuse(model)
    assert "torch_reformer" not in before
    expecttest.assert_expected_inline(
        "\n".join(repr(model).splitlines()[:3]),
        """\
ResNet(
  forward fused by torch_reformer
  (conv1): torch_reformer.Conv2d(3, 8, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)""",
    )
    assert repr(copy.deepcopy(model)) == repr(through_a_file(model)) == repr(model)
    assert all(type(m) is torch_reformer.nn.Conv2d for m in model.modules() if isinstance(m, nn.Conv2d))
