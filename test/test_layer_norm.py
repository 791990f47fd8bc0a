"""Layer norm whose result has another data type, against PyTorch in fp64: on CPUs and GPUs."""

import pytest
import torch
import torch.nn.functional as F

from torch_reformer.operators.layer_norm import layer_norm

EPS = 1e-6
HALF = torch.bfloat16


def outcome(function, grad, x, *parameters):
    """The result and the gradients."""
    leaves = [each.detach().requires_grad_() for each in (x, *parameters)]
    y = function(leaves[0], *[*leaves[1:], None, None][:2])
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(y.dtype))]


def check(x, dtype=HALF, parameters=(torch.float32, torch.float32)):
    """The error is at most twice that of PyTorch's way, fp32 that is rounded to the data type."""
    size = x.shape[-1:]
    given = [torch.randn(size, device=x.device).to(each) for each in parameters]
    grad = torch.randn(x.shape, device=x.device).to(dtype)

    def theirs(x, weight, bias):
        return F.layer_norm(x, size, weight, bias, EPS)

    exact = outcome(theirs, grad, *[each.double() for each in (x, *given)])
    fp32 = outcome(theirs, grad, *[each.float() for each in (x, *given)])
    found = outcome(lambda x, w, b: layer_norm(x, w, b, EPS, dtype), grad, x, *given)
    types = dtype, x.dtype, *parameters
    for is_exact, reference, ours, wanted in zip(exact, fp32, found, types, strict=True):
        assert ours.dtype == wanted and ours.shape == is_exact.shape
        allowed = (reference.to(wanted).double() - is_exact).abs().max()
        error, unit = (ours.double() - is_exact).abs().max(), is_exact.abs().max() * 2**-23
        assert error <= 2 * allowed + 4 * unit
    return found


@pytest.mark.parametrize("size", [(7,), (5, 24), (3, 4, 96), (2, 5, 7, 40), (2, 3, 2, 3, 8), (2, 1, 2, 3, 2, 1, 33)])
def test_sizes(size, device):
    check(torch.randn(size, device=device).to(HALF))
    check(torch.randn(size, device=device))


@pytest.mark.parametrize("width", [96, 766, 768, 770, 1024, 1032, 2048])
def test_widths(width, device):
    """Also of rows that are too long for the kernels."""
    check(torch.randn(50, width, device=device).to(HALF))


@pytest.mark.parametrize("parameters", [(), (torch.float32,), (HALF, HALF), (HALF, torch.float32)], ids=str)
@pytest.mark.parametrize("result", [torch.float32, torch.float16, HALF])
@pytest.mark.parametrize("input", [torch.float32, torch.float16, HALF])
def test_types(input, result, parameters, device):
    check(torch.randn(30, 48, device=device).to(input), result, parameters)


def test_many_rows(device):
    check(torch.randn(40000, 24, device=device).to(HALF))


def test_strides(device):
    """Rows that do not lie one after another, and those that begin where no vector may."""
    x = torch.randn(4, 24, 6, 5, device=device).to(HALF)
    check(x.permute(0, 2, 3, 1))
    check(x.to(memory_format=torch.channels_last).permute(0, 2, 3, 1))
    check(torch.randn(1, 24, device=device).to(HALF).expand(9, 24))
    check(torch.randn(24 * 9 + 1, device=device).to(HALF)[1:].view(9, 24))


def test_large_mean(device):
    check(torch.randn(64, 96, device=device) + 4096)


def test_repeats_bit_by_bit(device):
    x = torch.randn(5000, 96, device=device).to(HALF)
    weight, bias, grad = torch.randn(96, device=device), torch.randn(96, device=device), torch.randn_like(x)
    first, second = (outcome(lambda *given: layer_norm(*given, EPS, HALF), grad, x, weight, bias) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)], ids=str)
def test_gradients_of_some(needed, device):
    tensors = [
        torch.randn(20, 24, device=device).to(HALF),
        torch.randn(24, device=device),
        torch.randn(24, device=device),
    ]
    grad = torch.randn_like(tensors[0])

    def gradients(needed):
        leaves = [each.clone().requires_grad_(bool(need)) for each, need in zip(tensors, needed, strict=True)]
        layer_norm(*leaves, EPS, HALF).backward(grad)
        return [each.grad for each in leaves]

    for one, all, need in zip(gradients(needed), gradients((1, 1, 1)), needed, strict=True):
        assert torch.equal(one, all) if need else one is None


def test_vmap_of_gradients(device):
    x = torch.randn(5, 24, device=device, requires_grad=True)
    y, grads = layer_norm(x, None, None, EPS, torch.float32), torch.randn(3, 5, 24, device=device)

    def gradient(grad):
        return torch.autograd.grad(y, x, grad, retain_graph=True)[0]

    torch.testing.assert_close(torch.vmap(gradient)(grads), torch.stack([*map(gradient, grads)]))


def test_no_rows(device):
    x = torch.randn(0, 24, device=device, dtype=HALF, requires_grad=True)
    weight = torch.randn(24, device=device, requires_grad=True)
    y = layer_norm(x, weight, None, EPS, HALF)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 24) and not weight.grad.any()


def test_says_what_is_wrong(device):
    x = torch.randn(5, 24, device=device)
    with pytest.raises(
        RuntimeError, match=r"a parameter has size \[23\], which the input's last dimension, of \[5, 24\]"
    ):
        layer_norm(x, torch.randn(23, device=device), None, EPS, HALF)
    with pytest.raises(RuntimeError, match="the result has data type Int; float32"):
        layer_norm(x, None, None, EPS, torch.int32)
    with pytest.raises(RuntimeError, match="input has data type Long; float32"):
        layer_norm(x.long(), None, None, EPS, HALF)
