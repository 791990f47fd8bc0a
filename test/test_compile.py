"""torch.compile, torch.export, tracing: the operators' fake kernels and what relies on them."""

import os
import shutil

import pytest
import torch
from cases import DTYPES, STRIDES, cases, directions, examples, strided
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torch_reformer

needs_compiler = pytest.mark.skipif(
    not shutil.which("g++") and not os.environ.get("CI"), reason="inductor needs a C++ compiler"
)
BACKENDS = ["aot_eager", pytest.param("inductor", marks=[needs_compiler, pytest.mark.slow])]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network(channels_last=False, conv=torch_reformer.nn.Conv2d):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        conv(3, 8, 3, padding="same"),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        conv(8, 8, 3, stride=2, padding=1, groups=8, bias=False),
        conv(8, 4, 1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    )
    return model.to(memory_format=torch.channels_last) if channels_last else model


@settings(max_examples=examples(200))
@given(case=cases(), dtype=st.sampled_from(DTYPES), strides=st.tuples(*[st.sampled_from(STRIDES)] * 3))
def test_fake_results_look_like_real_ones(case, dtype, strides):
    sizes = case.input_size, case.weight_size, case.output_size
    x, w, y = (strided(torch.zeros(size, dtype=dtype), how) for size, how in zip(sizes, strides, strict=True))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (x, w, y)]
    for direction, (operands, run) in directions(case, x, w, y).items():
        real = run(*operands)
        operands, run = directions(case, *fakes)[direction]
        fake = run(*operands)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def trained(model, images, backend=None):
    """Losses of three steps on four images and the state after them; compiled by the backend, if one is given."""
    forward = torch.compile(model, backend=backend, fullgraph=True) if backend else model
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(images), torch.arange(4))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *model.state_dict().values()]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_training_step(backend, channels_last):
    images = torch.randn(4, 3, 8, 9)
    images = images.to(memory_format=torch.channels_last) if channels_last else images
    results = [trained(network(channels_last), images, used) for used in (None, backend)]
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("marked", [False, True])
def test_no_more_graphs_than_pytorch_over_batches(marked, training):
    """One graph if the batch dimension is marked; with dynamic=True PyTorch's own modules compile twice, too."""
    counts = []
    for conv in (torch.nn.Conv2d, torch_reformer.nn.Conv2d):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        model = network(conv=conv).train(training)
        compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=None if marked else True)
        for batch in (2, 5, 7, 9):
            images = torch.randn(batch, 3, 10, 12)
            if marked:
                torch._dynamo.mark_dynamic(images, 0)
            result = compiled(images)
            if training:
                result.sum().backward()
            else:
                torch.testing.assert_close(result, model(images))
        counts.append(counter.frame_count)
    assert counts[1] <= counts[0]
    assert counts[1] == 1 or not marked


def test_dynamic_height_and_width():
    counter = CompileCounterWithBackend("aot_eager")
    conv = torch_reformer.nn.Conv2d(3, 4, 3, stride=2, padding=1)
    compiled = torch.compile(conv, backend=counter, fullgraph=True, dynamic=True)
    for height, width in ((8, 9), (11, 16), (20, 21)):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(compiled(x), conv(x))
    assert counter.frame_count == 1


def test_unbacked_batch():
    """A batch size that depends on data."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def chosen(images, keep, w):
        return torch_reformer.conv2d(images[keep.nonzero().squeeze(1)], w)

    images, w = torch.randn(5, 3, 6, 6), torch.randn(4, 3, 3, 3)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for keep in (torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0, 1, 0, 0, 1])):
            torch.testing.assert_close(chosen(images, keep, w), torch.conv2d(images[keep.bool()], w))


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_batch(strict):
    model = network().eval()
    shapes = {"input": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (torch.randn(3, 3, 8, 8),), dynamic_shapes=shapes, strict=strict)
    assert sum(node.target is torch.ops.reformer.conv2d.default for node in program.graph.nodes) == 3
    images = torch.randn(7, 3, 8, 8)
    torch.testing.assert_close(program.module()(images), model(images))
    assert program.run_decompositions() is not None


def test_compiled_autocast():
    conv = torch_reformer.nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 3, 6, 6)

    def run(conv):
        with torch.autocast("cpu", torch.bfloat16):
            return conv(x)

    compiled = run(torch.compile(conv, backend="aot_eager", fullgraph=True))
    assert compiled.dtype == torch.bfloat16
    assert torch.equal(compiled, run(conv))


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx_of_gradients(tracing_mode):
    x, w, bias = (torch.randn(s, requires_grad=True) for s in ((2, 3, 6, 5), (4, 3, 3, 3), (4,)))

    def gradients(x, w, bias):
        return torch.autograd.grad(torch_reformer.conv2d(x, w, bias, 2, 1).square().sum(), (x, w, bias))

    traced = make_fx(gradients, tracing_mode=tracing_mode)(x, w, bias)
    names = [str(node.target) for node in traced.graph.nodes if "reformer" in str(node.target)]
    assert names == [f"reformer.{op}.default" for op in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")]
    torch.testing.assert_close(traced(x, w, bias), gradients(x, w, bias))
