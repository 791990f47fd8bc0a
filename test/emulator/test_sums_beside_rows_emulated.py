"""Sums over other dimensions than rows in the kernels that reduce rows, emulated, against eager's in fp64."""

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from marks import needs_aten

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]


def biased_softmax(x, bias):
    """Attention's weights in windows, with a bias for each head and pair of positions."""
    return torch.softmax(x.float() + bias, -1).bfloat16()


def modulated_norm(x, scale, shift):
    """A norm of tokens with a scale and a shift for each image."""
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


def modulated_norm_with_weights(x, scale, shift, weight, bias):
    """Sums per image and sums of everything."""
    return F.layer_norm(x, x.shape[-1:], weight, bias) * (1 + scale[:, None]) + shift[:, None]


def shared_by_tokens(x, scale):
    """A factor for each position, of all images."""
    return F.layer_norm(x, x.shape[-1:]) * scale


CASES = {
    "windows": (biased_softmax, (19, 3, 7, 7), [(3, 7, 7)]),
    "one head": (biased_softmax, (70, 1, 9, 33), [(1, 9, 33)]),
    "one row": (biased_softmax, (70, 5, 1, 33), [(5, 1, 33)]),
    "images": (modulated_norm, (5, 70, 24), [(5, 24)] * 2),
    "one image": (modulated_norm, (1, 70, 24), [(1, 24)] * 2),
    "one token": (modulated_norm, (70, 1, 24), [(70, 24)] * 2),
    "weights": (modulated_norm_with_weights, (5, 70, 24), [(5, 24)] * 2 + [(24,)] * 2),
    "positions": (shared_by_tokens, (37, 3, 40), [(3, 40)]),
}
OTHERS = {"one image", "one token", "one row"}  # sums of all rows, or of none


def run(name, value=None):
    """Results and gradients of a case, emulated and exact, and the report of its backward."""
    function, size, others = CASES[name]
    torch.manual_seed(0)
    operands = [torch.randn(each, dtype=torch.bfloat16) for each in (size, *others)]
    if value is not None:
        operands[0].view(-1)[11] = value
    operands = [each.requires_grad_() for each in operands]
    reports = []
    with emulated(2, 0):
        actual = without_dynamo(function, reports.append)(*operands)
        grads = torch.randn_like(actual)
        found = [actual, *torch.autograd.grad(actual, operands, grads)]
    exact = [each.detach().double().requires_grad_() for each in operands]
    result = function(*exact) if function is not biased_softmax else torch.softmax(exact[0] + exact[1], -1)
    return found, [result, *torch.autograd.grad(result, exact, grads.double())], reports[-1]


@pytest.mark.parametrize("name", CASES)
def test_sums_are_in_the_kernel_of_the_rows(name):
    found, expected, report = run(name)
    for one, other in zip(found, expected, strict=True):
        error, size = (one.double() - other).norm(), other.norm()
        assert error <= 1e-2 * size, (error, size)
    assert name in OTHERS or len(report.lines) == 1, str(report)


@pytest.mark.parametrize("name", ["windows", "images"])
def test_nan_reaches_only_its_sums(name):
    found, expected, _ = run(name, torch.nan)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())


def test_nothing_to_sum():
    x, scale = torch.randn(0, 3, 40).requires_grad_(), torch.randn(3, 40).requires_grad_()
    with emulated(2, 0):
        result = without_dynamo(shared_by_tokens, lambda report: None)(x, scale)
        _, of_scale = torch.autograd.grad(result, (x, scale), torch.ones_like(result))
    assert result.shape == x.shape and torch.equal(of_scale, torch.zeros(3, 40))
