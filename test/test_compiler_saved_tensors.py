"""Tensors that a forward saves for its backward: changing them raises an error, and a second backward can read them."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch._functorch import config as functorch_config

from torch_reformer import fuse
from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend=reformer, fullgraph=True, **options)


def real(*sizes, grad=True):
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=grad)


def of_parts(x, w):
    one, other = x.split([1, 3], dim=1)
    return one.sin().sum() * (other.t() @ w).sum()


FUNCTIONS = {
    "mm": lambda x, w: x.t() @ w,
    "matmul": lambda x, w: torch.matmul(x.view(1, 5, 4).mT, w.unsqueeze(0)),
    "product": lambda x, w: x.view(-1)[:4] * w.flatten()[1:5],
    "linear": lambda x, w: F.linear(x.t(), w.t()),
    "parts": of_parts,
    "squares": lambda x, w: x.permute(1, 0)[1:] * w.square().t()[1:],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("changed", ["input", "view", "parameter"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_changes_are_noticed(name, changed, dynamic):
    """Changes of an input that the backward needs, of a view of it or of a parameter raise eager PyTorch's error."""

    def run(function):
        torch.manual_seed(0)
        x, w = real(5, 4, grad=changed == "parameter"), real(5, 4)
        result = function(x, w)
        with torch.no_grad():
            {"input": x, "view": x[:, 1:], "parameter": w}[changed].zero_()
        result.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(FUNCTIONS[name])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(compiled(FUNCTIONS[name], dynamic=dynamic))


def test_changes_of_results_are_noticed():
    def function(x, w):
        hidden = x.sin()
        return hidden, hidden.t() @ w

    hidden, result = compiled(function)(real(5, 4), real(5, 4))
    with torch.no_grad():
        hidden.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_changes_of_a_models_parameters_are_noticed():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    fuse(model)
    result = model(torch.randn(3, 4))
    with torch.no_grad():
        model[2].weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_changes_of_what_is_not_needed_are_allowed():
    def function(x, w):
        return x.t().exp() @ w.sum(1, keepdim=True)

    gradients = []
    for each in (function, compiled(function)):
        torch.manual_seed(0)
        x, w = real(5, 4), real(5, 4)
        result = each(x.detach(), w)
        with torch.no_grad():
            w.zero_()
        result.sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients)


LOSSES = {
    "product": lambda x, w: (x @ w).sin().sum(),
    # The forward computes the loss's gradient, and the backward scales it in place (hoist_loss_gradients.py).
    "cross entropy": lambda x, w: F.cross_entropy(x @ w, torch.arange(x.shape[0]) % 7),
}


@pytest.mark.parametrize("donated", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_retained_graphs(name, dynamic, donated):
    x, w = real(256, 16), real(16, 320)

    def gradients(function):
        loss = 3 * function(x, w)
        for retained in (True, True, False):
            yield torch.autograd.grad(loss, (x, w), retain_graph=retained)

    with functorch_config.patch(donated_buffer=donated):
        found = list(gradients(compiled(LOSSES[name], dynamic=dynamic)))
    torch.testing.assert_close(found, list(gradients(LOSSES[name])))


def test_of_several_losses():
    """The first backward keeps what the second one needs."""
    x, w = real(64, 16), real(16, 32)

    def function(x, w):
        hidden = (x @ w).tanh()
        return hidden.square().mean(), hidden.abs().mean()

    def gradients(function):
        one, other = function(x, w)
        return torch.autograd.grad(one, w, retain_graph=True) + torch.autograd.grad(other, w)

    torch.testing.assert_close(gradients(compiled(function)), gradients(function))


def test_batches_of_gradients_are_refused():
    x, w = real(5, 4), real(4, 3)
    result = compiled(torch.matmul)(x, w)
    with pytest.raises(RuntimeError, match="takes no batches of tensors .is_grads_batched=True"):
        torch.autograd.grad(result, w, torch.randn(2, 5, 3, dtype=torch.float64), is_grads_batched=True)
