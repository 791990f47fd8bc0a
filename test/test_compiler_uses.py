"""The compiler together with other parts of PyTorch: exported modules, frozen parameters, transforms, optimizers."""

import copy

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def model():
    # No bias before batch norm: its gradient is zero but for rounding, which Adam would scale to full steps.
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 4))


X = torch.randn(4, 3, 12, 12)


def compiled(function, **options):
    return torch.compile(function, backend=reformer, **options)


def same_parameters(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
def test_exported_modules(model, training):
    exported = torch.export.export(copy.deepcopy(model).train(training), (X,)).module()
    torch.testing.assert_close(compiled(exported)(X), model.train(training)(X))


def test_frozen_parameters_and_gradients_that_add_up(model):
    model[0].weight.requires_grad_(False)
    other = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(3):
        run(X).square().sum().backward()
        other(X).square().sum().backward()
    same_parameters(model, other)


def test_functional_calls_and_their_gradients(model):
    parameters = dict(model.eval().named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    torch.testing.assert_close(compiled(loss)(parameters, X), loss(parameters, X))
    gradients = torch.func.grad(loss)
    found, expected = compiled(gradients)(parameters, X), gradients(parameters, X)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_batched_functions():
    function = torch.vmap(lambda x: (x * 2).relu().sum())
    torch.testing.assert_close(compiled(function)(X), function(X))


@pytest.mark.parametrize("whole", [False, True])
def test_optimizers(model, whole):
    """The optimizer's step is compiled with the model, or alone."""
    other = copy.deepcopy(model)
    own, reference = (torch.optim.AdamW(each.parameters(), 1e-2) for each in (model, other))

    def loss(model):
        return model(X).square().mean()

    def step():
        own.zero_grad()
        loss(model).backward()
        own.step()

    update = compiled(step if whole else own.step)
    for _ in range(3):
        if not whole:
            own.zero_grad()
            loss(model).backward()
        update()
        reference.zero_grad()
        loss(other).backward()
        reference.step()
    same_parameters(model, other)


def test_second_derivatives_are_refused():
    x = torch.randn(5, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(lambda x: (x**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()


def test_inference_mode(model):
    with torch.inference_mode():
        torch.testing.assert_close(compiled(model.eval())(X), model(X))


def test_whole_graphs_of_sizes_that_change(model):
    run = compiled(model, dynamic=True, fullgraph=True)
    for count, size in ((2, 12), (3, 14), (5, 20)):
        other, x = copy.deepcopy(model), torch.randn(count, 3, size, size)
        torch.testing.assert_close(run(x), other(x), rtol=1e-4, atol=1e-5)
