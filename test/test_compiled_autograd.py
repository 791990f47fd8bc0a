"""PyTorch's compiled autograd, which traces a backward as one graph, knows the package's nodes."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd

import torch_reformer
from torch_reformer import conv2d, conv2d_act, linear_act
from torch_reformer.nn import Conv2dBatchNormAct


def rows(x):
    return x.flatten(1)[:, :9]


LAYER = Conv2dBatchNormAct(4, 6, 3)
# Functions of an input, a filter, a bias and a residual.
FUNCTIONS = {
    "conv2d": lambda x, w, b, y: conv2d(x, w, b),
    "conv2d_act": lambda x, w, b, y: conv2d_act(x, w, b, residual=y),
    "linear_act": lambda x, w, b, y: linear_act(rows(x), rows(w), b, activation="gelu"),
    "batch norm": lambda x, w, b, y: LAYER(x, y),
    "penalty": lambda x, w, b, y: torch.autograd.grad(conv2d(x, w).square().sum(), x, create_graph=True)[0],
}


def backward(loss, graphs=None):
    """The backward, by compiled autograd if there is a list to append its graphs to."""
    if graphs is None:
        return loss.backward()

    def compiler(module):
        graphs.append(module)
        return torch.compile(module, backend="eager", fullgraph=True)

    with compiled_autograd._enable(compiler):
        loss.backward()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    """They are PyTorch's, also those of the next batch, by the same graph, and of one of another size."""
    torch._dynamo.reset()
    counts = []
    for batch in (2, 2, 3):
        sizes = (batch, 4, 8, 8), (6, 4, 3, 3), (6,), (batch, 6, 6, 6)
        given, grads = [torch.randn(size) for size in sizes], []
        for graphs in (None, []):
            mine = [tensor.clone().requires_grad_() for tensor in given]
            backward(FUNCTIONS[name](*mine).square().mean(), graphs)
            grads.append([tensor.grad for tensor in mine])
        assert [grad is None for grad in grads[0]] == [grad is None for grad in grads[1]]
        torch.testing.assert_close(*([grad for grad in each if grad is not None] for each in reversed(grads)))
        counts.append(len(graphs))
    assert counts == [1, 0, 1]


def test_a_converted_model():
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 4)
    model, x = nn.Sequential(*layers), torch.randn(2, 3, 8, 8)
    torch_reformer.convert(model)
    other = copy.deepcopy(model)
    backward(model(x).square().mean(), [])
    backward(other(x).square().mean())
    for got, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad)


def test_tensors_changed_after_they_were_saved():
    x, w = torch.randn(2, 4, 8, 8), torch.randn(6, 4, 3, 3, requires_grad=True)
    loss = conv2d(x, w).sum()
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(loss, [])
