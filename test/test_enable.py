"""enable(): PyTorch's own convolutions run by the chosen kernels, in the whole process."""

import copy
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten, slow
from torch.utils.data import DataLoader

import torch_reformer
from torch_reformer.runtime import aten, compile_library, native

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def disabled_afterwards():
    yield
    torch_reformer.disable()


def chosen() -> int:
    """Number of decisions that this thread has asked for."""
    return sum(native.cache_counts())


def test_samples_of_pytorch():
    """PyTorch's own samples run in a separate process: importing them changes settings of PyTorch."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(Path(__file__).parent / "samples_of_pytorch.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_context_restores_and_disable_leaves_nothing():
    x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    before = {op: torch._C._dispatch_dump(op) for op in ("aten::convolution", "aten::convolution_backward")}
    with torch_reformer.enable():
        with torch_reformer.enable():
            pass
        asked = chosen()
        F.conv2d(x, w)
        assert chosen() > asked
    asked = chosen()
    F.conv2d(x, w)
    assert chosen() == asked
    torch_reformer.enable()
    torch_reformer.disable()
    torch_reformer.disable()
    for op, dump in before.items():
        assert torch._C._dispatch_dump(op) == dump


def test_a_forced_solver_computes():
    x, w = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    with torch_reformer.enable(), torch_reformer.config(force="reference"):
        got = F.conv2d(x, w, padding=1)
    assert not torch.equal(got, F.conv2d(x, w, padding=1))  # it sums in another order
    torch.testing.assert_close(got, F.conv2d(x, w, padding=1))


def gradients(model, x):
    model.zero_grad()
    y = model(x)
    y.square().mean().backward()
    return [y.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        torch.nn.Conv2d(16, 8, 1),
    )


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
def test_training_steps_in_threads(memory_format):
    model, x = network().to(memory_format=memory_format), torch.randn(4, 3, 16, 16).to(memory_format=memory_format)
    want, results = gradients(model, x), {}
    models = [copy.deepcopy(model) for _ in range(4)]

    def step(i):
        results[i] = gradients(models[i], x)

    with torch_reformer.enable():
        threads = [threading.Thread(target=step, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for got in results.values():
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_second_derivatives():
    x, w = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    with torch_reformer.enable():
        assert torch.autograd.gradcheck(F.conv2d, (x.requires_grad_(), w.requires_grad_()))
        assert torch.autograd.gradgradcheck(F.conv2d, (x, w))


def test_transforms():
    x, w = torch.randn(5, 2, 3, 6, 6), torch.randn(4, 3, 3, 3)

    def per_sample():
        loss = lambda w, x: F.conv2d(x, w).square().sum()  # noqa: E731
        tangent = torch.func.jvp(lambda w: F.conv2d(x[0], w), (w,), (w,))[1]
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x), tangent

    want = per_sample()
    with torch_reformer.enable():
        torch.testing.assert_close(per_sample(), want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("force", [None, "aten", "aten_nhwc", "reference"])
def test_operators_of_this_package(force):
    """These operators call aten::convolution, too, where PyTorch's own kernel is chosen."""
    torch.set_num_threads(1)
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    model = torch_reformer.nn.Conv2dBatchNormAct(3, 4, 3)

    def step():
        operands = x, model.conv.weight
        results = torch.ops.reformer.conv2d(*operands), torch_reformer.conv2d_act(*operands), model(x)
        return [
            *results,
            *torch.autograd.grad(sum(tensor.square().sum() for tensor in results), [x, *model.parameters()]),
        ]

    with torch_reformer.config(force=force):
        want = step()
        with torch_reformer.enable():
            torch.testing.assert_close(step(), want, atol=1e-3, rtol=1e-4)


def test_a_context_may_be_entered_again():
    context = torch_reformer.enable()
    for _ in range(2):
        with context:
            assert aten.library.is_enabled()
        assert not aten.library.is_enabled()


def test_autocast():
    model, x = network(), torch.randn(4, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        want = gradients(model, x)
        with torch_reformer.enable():
            got = gradients(model, x)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, atol=0.05 * theirs.abs().max().item(), rtol=0)


@slow
def test_inductor():
    model, x = network(), torch.randn(4, 3, 16, 16)
    want = gradients(model, x)
    with torch_reformer.enable():
        asked = chosen()
        got = gradients(torch.compile(model), x)
        assert chosen() > asked
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_tensors_that_are_not_ours():
    """Tensors that this package does not support go to PyTorch, as without enable()."""
    x, w = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    with torch_reformer.enable():
        asked = chosen()
        F.conv2d(x.to_mkldnn(), w.to_mkldnn())
        F.conv2d(x[:0], w)
        F.conv2d(x.to("meta"), w.to("meta"))
        F.conv2d(x.to(torch.int32), w.to(torch.int32))
        F.conv_transpose2d(x, torch.randn(3, 4, 3, 3))
        assert chosen() == asked


def test_worker_processes():
    """A fork of a process in which it is enabled."""
    x, w = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return F.conv2d(x + i, w)[0]

    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    with torch_reformer.enable():
        for got, i in zip(DataLoader(Data(), num_workers=1), range(2), strict=True):
            torch.testing.assert_close(got, F.conv2d(x + i, w))


def test_without_the_library(tmp_path):
    """One warning, and enable(), say how to get the library, and the operators run by their Python rules."""
    script = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import torch_reformer
assert torch_reformer.__file__.startswith(sys.argv[1])
x, w = torch.randn(1, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
torch_reformer.conv2d(x, w).sum().backward()
torch_reformer.disable()
try:
    torch_reformer.enable()
except RuntimeError as error:
    print(error)
"""
    package = Path(torch_reformer.__file__).parent
    without = shutil.ignore_patterns("_aten_*", "kernels", "__pycache__")
    shutil.copytree(package, tmp_path / package.name, ignore=without)
    compile_library.copy_sources(tmp_path / package.name / "csrc")
    environment = os.environ | {"CXX": "no-such-compiler", "TORCH_REFORMER_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("torch_reformer makes no plans") == 1
    assert "<string>:4: UserWarning" in done.stderr, "the warning names the line that imports the package"
    assert "enable: there is no library for torch" in done.stdout and "apt install g++" in done.stdout
