"""Whole training steps that fail in the middle leave parameters and the optimizer as they were."""

import copy
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from test_training_step import batches, eager, net, quiet, same, tensors  # noqa: F401
from torch import Tensor, nn, optim

import torch_reformer

failing = [False]


@torch.library.custom_op("training_failures::identity", mutates_args=())
def identity(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("training_failures::gradient", mutates_args=())
def gradient(x: Tensor) -> Tensor:
    if failing[0]:
        raise torch.OutOfMemoryError("no memory in the backward")
    return x.clone()


identity.register_fake(torch.empty_like)
gradient.register_fake(torch.empty_like)
identity.register_autograd(lambda _, grad: gradient(grad))


@contextmanager
def no_memory():
    """Context in which backwards fail, and the error is caught."""
    failing[0] = True
    try:
        with pytest.raises(torch.OutOfMemoryError):
            yield
    finally:
        failing[0] = False


class Net(nn.Module):
    """The backward of its first layers may fail, after the gradients of the last ones are known."""

    def __init__(self):
        super().__init__()
        self.net, self.last = net(), nn.Linear(5, 5).double()

    def forward(self, x):
        return self.last(identity(self.net(x)).relu())


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
@pytest.mark.parametrize("make", [optim.AdamW, optim.RMSprop])
@pytest.mark.filterwarnings("ignore:a plan has operators")
def test_out_of_memory(make, options):
    one = Net()
    other = copy.deepcopy(one)
    first, second = make(one.parameters(), 1e-3), make(other.parameters(), 1e-3)
    step = torch_reformer.training_step(other, loss_of, second, **options)
    data = batches(6)
    eager(one, first, loss_of, data[:3], *([None, 2] if options else []))
    for batch in data[:3]:
        step(*batch)
    before = [tensor.clone() for tensor in (*other.parameters(), *tensors(nn.Module(), second))]
    buffers = copy.deepcopy(dict(other.named_buffers()))
    with no_memory():
        step(*data[3])
    same([*other.parameters(), *tensors(nn.Module(), second)], before, 0)
    other.load_state_dict(buffers, strict=False)  # buffers may have changed, as in eager PyTorch
    eager(one, first, loss_of, data[4:], *([None, 2] if options else []))
    for batch in data[4:]:
        step(*batch)
    assert step.reason is None
    same(tensors(other, second), tensors(one, first))
