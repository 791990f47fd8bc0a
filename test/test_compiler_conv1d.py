"""1d convolutions as 2d convolutions of images with one row."""

import pytest
import torch
import torch.nn.functional as F

from torch_reformer.compiler.decompositions import conv1d
from torch_reformer.compiler.decompositions.convolution import Numbers


@pytest.mark.parametrize("numbers", [{}, {"stride": 2, "padding": 3}, {"dilation": 2, "groups": 2}], ids=str)
@pytest.mark.parametrize("channels_inside", [False, True])
def test_the_same_results(monkeypatch, numbers, channels_inside):
    monkeypatch.setattr(conv1d, "_supports", lambda input, numbers: True)
    x = (
        torch.randn(3, 20, 4, dtype=torch.float64).transpose(1, 2)
        if channels_inside
        else torch.randn(3, 4, 20).double()
    )
    weight, bias = torch.randn(6, 4 // numbers.get("groups", 1), 5).double(), torch.randn(6).double()
    x, weight, bias = (each.requires_grad_() for each in (x, weight, bias))
    expected = F.conv1d(x, weight, bias, **numbers)
    rest = [[numbers.get(name, usual)] for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1))]
    rest += [False, [0], numbers.get("groups", 1)]
    torch.testing.assert_close(conv1d._forward(x, weight, bias, Numbers(*rest)), expected)
    grad = torch.randn_like(expected)
    found = conv1d._backward(grad, x, weight, [6], Numbers(*rest), [True, True, True])
    for one, other in zip(found, torch.autograd.grad(expected, (x, weight, bias), grad), strict=True):
        torch.testing.assert_close(one, other)
    assert conv1d._backward(grad, x, weight, [6], Numbers(*rest), [False, True, False])[::2] == (None, None)


def test_cpus_keep_theirs():
    assert conv1d._forward(*(torch.ones(1, 1, 1),) * 2, None, Numbers([1], [0], [1], False, [0], 1)) is NotImplemented


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu(dtype):
    torch._dynamo.reset()
    conv = torch.nn.Conv1d(12, 20, 3, stride=2, padding=1, device="cuda", dtype=dtype)
    x = torch.randn(4, 31, 12, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
    compiled = torch.compile(lambda x: F.relu(conv(x)), backend="reformer")
    found, expected = compiled(x), F.relu(F.conv1d(x.double(), conv.weight.double(), conv.bias.double(), 2, 1))
    tensors = x, *conv.parameters()
    gradients = torch.autograd.grad(found.sum(), tensors), torch.autograd.grad(expected.sum(), tensors)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-3  # tf32
    for one, other in zip((found, *gradients[0]), (expected, *gradients[1]), strict=True):
        assert (one.double() - other.double()).norm() <= tolerance * other.double().norm()
