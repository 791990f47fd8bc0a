"""Convolutions that cut images into patches, computed as matrix products."""

import copy

import pytest
import torch
import torch.nn.functional as F

from torch_reformer.compiler.decompositions import conv_patchify
from torch_reformer.compiler.decompositions.convolution import Numbers


@pytest.mark.parametrize("size", [(4, 4), (2, 3), (16, 1)], ids=str)
@pytest.mark.parametrize("channels", [2, 3, 7])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
def test_the_product_is_the_convolution(size, channels, order):
    images = torch.randn(2, channels, 5 * size[0], 3 * size[1], dtype=torch.float64).to(memory_format=order)
    weight = torch.randn(6, channels, *size, dtype=torch.float64).to(memory_format=torch.channels_last)
    weight, bias = weight.requires_grad_(), torch.randn(6, dtype=torch.float64)
    for each in (None, bias):
        expected = F.conv2d(images, weight, each, stride=size)
        found = conv_patchify.product(images, weight, each)
        torch.testing.assert_close(found, expected)
        assert found.is_contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(
        conv_patchify.weight_gradient(grad, images, weight), torch.autograd.grad(expected, weight, grad)[0]
    )


def supports(images, weight, **changed):
    with torch._subclasses.FakeTensorMode():
        given = {"stride": weight[2:], "padding": (0, 0), "dilation": (1, 1), "transposed": False, "groups": 1}
        given["output_padding"] = (0, 0)
        order = changed.pop("order", torch.channels_last)
        device = changed.pop("device", "cuda")
        made = (torch.empty(sizes, device="meta").to(memory_format=order) for sizes in (images, weight))
        return conv_patchify._supports(*(_On(each, device) for each in made), Numbers(**(given | changed)))


class _On:
    """A tensor that claims to be on another device."""

    def __init__(self, tensor, device):
        self.tensor, self.device = tensor, torch.device(device)

    def __getattr__(self, name):
        return getattr(self.tensor, name)


def test_which_convolutions_are_products():
    assert supports((2, 3, 8, 8), (5, 3, 4, 4)) and supports((2, 3, 8, 9), (5, 3, 4, 3))
    assert supports((2, 3, 8, 8), (5, 3, 4, 4), stride=(4,), dilation=(1,))
    assert not supports((2, 3, 8, 8), (5, 3, 4, 4), device="cpu")
    assert not supports((2, 3, 8, 8), (5, 3, 4, 4), order=torch.contiguous_format)
    assert not supports((2, 8, 8, 8), (5, 8, 4, 4)) and not supports((2, 1, 8, 8), (5, 1, 4, 4))
    assert not supports((2, 3, 9, 8), (5, 3, 4, 4))  # the last row is in no patch
    assert not supports((2, 3, 8, 8), (5, 3, 1, 1))
    assert not supports((0, 3, 8, 8), (5, 3, 4, 4))
    for changed in ({"stride": (2, 2)}, {"padding": (1, 1)}, {"dilation": (2, 2)}, {"groups": 3}, {"transposed": True}):
        assert not supports((2, 3, 8, 8), (5, 3, 4, 4), **changed)


@pytest.mark.gpu
@pytest.mark.parametrize("images_need_gradients", [False, True])
def test_on_a_gpu(images_need_gradients):
    torch._dynamo.reset()
    conv = torch.nn.Conv2d(3, 24, 4, stride=4, device="cuda").to(memory_format=torch.channels_last)
    images = torch.randn(5, 3, 20, 24, device="cuda").to(memory_format=torch.channels_last)
    images.requires_grad_(images_need_gradients)
    wide = copy.deepcopy(conv).double()
    results = []
    for module, run in ((conv, torch.compile(conv, backend="reformer")), (wide, wide)):
        result = run(images.to(module.weight.dtype))
        result.square().sum().backward()
        results.append((result, *(each.grad for each in module.parameters())))
    for found, expected in zip(*results, strict=True):
        assert (found.double() - expected).norm() <= 1e-3 * expected.norm()  # tf32
