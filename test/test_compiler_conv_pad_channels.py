"""2d convolutions whose channels are padded to a multiple of 8."""

import pytest
import torch
import torch.nn.functional as F

from torch_reformer.compiler.decompositions import conv_pad_channels
from torch_reformer.compiler.decompositions.convolution import Numbers


@pytest.mark.parametrize("numbers", [{}, {"stride": 2, "padding": 1}], ids=str)
def test_the_same_results(monkeypatch, numbers):
    monkeypatch.setattr(conv_pad_channels, "_supports", lambda *_: True)
    given = (torch.randn(*sizes, dtype=torch.float64) for sizes in ((2, 9, 7, 8), (5, 9, 3, 3), (5,)))
    x, weight, bias = (each.requires_grad_() for each in given)
    expected = F.conv2d(x, weight, bias, **numbers)
    rest = [[numbers.get("stride", 1)] * 2, [numbers.get("padding", 0)] * 2, [1, 1], False, [0, 0], 1]
    torch.testing.assert_close(conv_pad_channels._forward(x, weight, bias, Numbers(*rest)), expected)
    grad = torch.randn_like(expected)
    found = conv_pad_channels._backward(grad, x, weight, [5], Numbers(*rest), [True, True, True])
    for one, other in zip(found, torch.autograd.grad(expected, (x, weight, bias), grad), strict=True):
        torch.testing.assert_close(one, other)
    found = conv_pad_channels._backward(grad, x, weight, [5], Numbers(*rest), [False, True, False])
    assert found[0] is None and found[1].shape == weight.shape


def numbers_of(transposed=False, groups=1):
    return Numbers([1, 1], [0, 0], [1, 1], transposed, [0, 0], groups)


class OnGpu(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    device = torch.device("cuda")


def supports(*sizes, dtype=torch.bfloat16, order=torch.channels_last, **numbers):
    images = torch.empty(sizes, dtype=dtype).to(memory_format=order).as_subclass(OnGpu)
    return conv_pad_channels._supports(images, numbers_of(**numbers))


def test_which_convolutions_get_zeros():
    assert supports(2, 300, 3, 4) and supports(2, 300, 3, 4, dtype=torch.float16)
    assert not supports(2, 304, 3, 4) and not supports(2, 58, 3, 4) and not supports(0, 300, 3, 4)
    assert not supports(2, 300, 3, 4, dtype=torch.float32) and not supports(2, 300, 3, 4, order=torch.contiguous_format)
    assert not supports(2, 300, 3, 4, groups=2) and not supports(2, 300, 3, 4, transposed=True)
    assert not conv_pad_channels._supports(torch.empty(2, 300, 3, 4, dtype=torch.bfloat16), numbers_of())


@pytest.mark.gpu
def test_on_a_gpu():
    torch._dynamo.reset()
    conv = torch.nn.Conv2d(100, 24, 3, padding=1, device="cuda").to(torch.bfloat16, memory_format=torch.channels_last)
    x = torch.randn(3, 100, 9, 10, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x.requires_grad_()
    found = torch.compile(lambda x: conv(x * 2), backend="reformer")(x)
    expected = F.conv2d(x.double() * 2, conv.weight.double(), conv.bias.double(), padding=1)
    grad = torch.randn_like(found)
    gradients = torch.autograd.grad(found, (x, *conv.parameters()), grad)
    exact = torch.autograd.grad(expected, (x, *conv.parameters()), grad.double())
    for one, other in zip((found, *gradients), (expected, *exact), strict=True):
        assert one.shape == other.shape and (one.double() - other.double()).norm() <= 1e-2 * other.double().norm()
