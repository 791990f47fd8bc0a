"""Whole training steps whose weights or state change places in memory between steps, or are written twice in one."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from test_training_averages import FUNCTIONS, OPTIMIZERS, pair, states
from test_training_averages import eager as averaged_steps
from test_training_averages import planned as planned_averages
from test_training_step import Net, batches, eager, loss_of, net, quiet, same, tensors  # noqa: F401
from torch import nn
from torch.optim import SGD, AdamW, RMSprop

import torch_reformer

MAKERS = {
    "sgd": functools.partial(SGD, lr=0.05, momentum=0.9),
    "adamw": functools.partial(AdamW, lr=1e-2),
    "rmsprop": functools.partial(RMSprop, lr=1e-3),
}


def check(make, optimizer, change=None, loss=loss_of, data=None, **options):
    """Steps before and after a change of the model and its optimizer are as in eager PyTorch."""
    data, models = data or batches(6), [make(), make()]
    one, other = (MAKERS[optimizer](model.parameters()) for model in models)
    step = torch_reformer.training_step(models[1], loss, other, **options)
    losses = [[], []]
    for number, batch in enumerate(data):
        for model, own in ((models[0], one), (models[1], other)):
            if change is not None and number == 3:
                change(model, own)
        losses[0] += eager(models[0], one, loss, [batch], accumulate=options.get("accumulate", 1))
        losses[1].append(step(*batch))
    assert step.reason is None
    same(losses[1], losses[0])
    same(tensors(models[1], other), tensors(models[0], one))


def in_channels_last(tensor):
    is_image = isinstance(tensor, torch.Tensor) and tensor.dim() == 4
    return tensor.to(memory_format=torch.channels_last) if is_image else tensor


def convert_model(model, optimizer):
    model.to(memory_format=torch.channels_last)


def load_state(model, optimizer):
    state = copy.deepcopy(optimizer.state_dict())
    for own in state["state"].values():
        own.update({name: in_channels_last(value) for name, value in own.items()})
    optimizer.load_state_dict(state)


def put_state(model, optimizer):
    own = optimizer.state[model.conv.weight]
    own.update({name: in_channels_last(value) for name, value in own.items()})


@pytest.mark.parametrize("optimizer", MAKERS)
@pytest.mark.parametrize("change", [convert_model, load_state, put_state])
def test_state_of_other_strides(change, optimizer):
    """Fused operators read parameters and state in the order of memory, and plans with the strides that they know."""
    check(net, optimizer, change)


class Plain(Net):
    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


def plain():
    torch.manual_seed(0)
    return Plain().double()


def test_sums_of_other_strides():
    check(plain, "adamw", convert_model, accumulate=2)


class WithGaps(nn.Module):
    """Its parameter is a part of the rows of a tensor."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(192, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(whole[:, :5])

    def forward(self, x):
        return x.flatten(1) @ self.weight


@pytest.mark.parametrize("optimizer", MAKERS)
def test_parameters_with_gaps(optimizer):
    check(WithGaps, optimizer)


def check_average(optimizer, loss=loss_of, change=None, share=None, reason=None, **options):
    """A step with averaged weights, and one that changes their place in memory, are as in eager PyTorch."""
    (one, other), results = pair(optimizer, **FUNCTIONS["ema"], **options), []
    for model, _, averaged in (one, other):
        if share:
            share(model, averaged)
    data = batches(6)
    of_one = functools.partial(loss, averaged=one[2]) if loss is not loss_of else loss
    of_other = functools.partial(loss, averaged=other[2]) if loss is not loss_of else loss
    step = torch_reformer.training_step(other[0], of_other, other[1], ema=other[2])
    expected = []
    for number, batch in enumerate(data):
        if change and number == 3:
            change(one[2])
            change(other[2])
        expected += averaged_steps(*one, [batch], loss=of_one)
        if reason and number == 1:
            with pytest.warns(match=reason):
                results.append(step(*batch))
        else:
            results.append(step(*batch))
    assert step.reason is None
    same(results, expected)
    same(states(other[0], other[2]), states(one[0], one[2]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_averages_of_other_strides(optimizer):
    check_average(optimizer, change=lambda averaged: averaged.to(memory_format=torch.channels_last))


def share_head(model, averaged):
    averaged.module.head.weight = model.head.weight


def share_mean(model, averaged):
    averaged.module.norm.running_mean = model.norm.running_mean


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("share", [share_head, share_mean])
def test_averages_that_are_the_weights_themselves(share, optimizer):
    check_average(optimizer, share=share, use_buffers=True, reason="changes averages, too")


def distilled(model, x, y, averaged):
    with torch.no_grad():
        taught = averaged(x)  # which changes running statistics
    return F.mse_loss(model(x), taught) + F.cross_entropy(model(x), y)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_loss_calls_the_average(use_buffers, optimizer):
    """If buffers are copied, not averaged, what the loss writes to them does not matter."""
    reason = "changes averages, too" if use_buffers else None
    check_average(optimizer, distilled, use_buffers=use_buffers, reason=reason)


def clamped(model, x, y, averaged):
    with torch.no_grad():
        model.head.weight.clamp_(-0.1, 0.1)
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_loss_changes_weights(optimizer):
    """The average gets them as the optimizer's update leaves them."""
    check_average(optimizer, clamped)


def even(average, new, count):
    return odd(average, new, count) if decay < 0 else average.lerp(new, 1 - decay)


def odd(average, new, count):
    return even(average, new, count)


decay = 0.8


def test_functions_that_call_each_other():
    one, other = pair("sgd", avg_fn=even)
    expected = averaged_steps(*one, batches(3))
    actual, _ = planned_averages(*other, batches(3))
    same(actual, expected)
    same(states(other[0], other[2]), states(one[0], one[2]))
