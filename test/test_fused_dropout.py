"""Dropout inside linear_act: which elements are dropped, how many, and when."""

import math

import pytest
import torch

import torch_reformer
from torch_reformer import linear_act


def mask_of(p, size=(64, 32), activation="none"):
    """Mask of the elements that dropout leaves; without dropout no element would be 0."""
    return linear_act(torch.ones(size[0], 1), torch.ones(size[1], 1), activation=activation, dropout=p) != 0


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_rate(p):
    """The rate is within six standard deviations overall, in every row and in every column."""
    mask = mask_of(p, (2000, 500))
    for dropped, count in ((~mask).sum(), mask.numel()), ((~mask).sum(0), 2000), ((~mask).sum(1), 500):
        deviation = math.sqrt(count * p * (1 - p))
        assert ((dropped - count * p).abs() <= 6 * deviation + 1).all()


def test_elements_and_calls_are_independent():
    """The masks of adjacent elements along both dimensions, and of two calls, agree no more often than by chance."""
    first, second = mask_of(0.5, (1000, 1000)), mask_of(0.5, (1000, 1000))
    pairs = (first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), (first[:, 4:], first[:, :-4]), (first, second)
    for a, b in pairs:
        assert abs((a == b).double().mean() - 0.5) < 6 * 0.5 / math.sqrt(a.numel())


def test_seed():
    draws = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        draws.append([mask_of(0.3), mask_of(0.3)])
    assert all(map(torch.equal, draws[0], draws[1]))
    assert not torch.equal(draws[0][0], draws[0][1]) and not torch.equal(draws[0][0], draws[2][0])


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_forward_and_backward_see_one_mask(activation):
    x, w = torch.randn(40, 6, dtype=torch.float64, requires_grad=True), torch.randn(8, 6, dtype=torch.float64)
    bias = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(5)
    y = linear_act(x, w, bias, activation=activation, dropout=0.25)
    mask = (y != 0).double()
    expected = linear_act(x, w, bias, activation=activation) * mask / 0.75
    torch.testing.assert_close(y, expected)
    gradient = torch.randn_like(y)
    torch.testing.assert_close(*(torch.autograd.grad(z, (x, bias), gradient) for z in (y, expected)))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_ends(p):
    """NaN stays NaN, dropped or not, and the residual is not dropped."""
    x = torch.tensor([[1.0], [float("nan")], [2.0]], requires_grad=True)
    y = linear_act(x, torch.ones(50, 1), activation="relu", dropout=p, residual=torch.ones(3, 50))
    assert y[1].isnan().all()
    assert set(y[0].tolist()) == {0.0: {2.0}, 0.5: {1.0, 3.0}, 1.0: {1.0}}[p]
    (gradient,) = torch.autograd.grad(y[0].sum(), x)
    assert gradient[0].item() == y[0].sum().item() - 50


def test_not_in_evaluation():
    module = torch_reformer.nn.LinearAct(4, 6, dropout=0.5)
    x = torch.randn(3, 4)
    expected = torch.relu(torch.nn.functional.linear(x, module.weight, module.bias))
    assert not torch.equal(module(x), expected)
    before = torch.get_rng_state()
    torch.testing.assert_close(module.eval()(x), expected)
    assert torch.equal(torch.get_rng_state(), before)  # no random number was drawn


def test_without_dropout_nothing_is_drawn():
    before = torch.get_rng_state()
    mask_of(0.0), mask_of(1.0)
    assert torch.equal(torch.get_rng_state(), before)
