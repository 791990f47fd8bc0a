"""First steps of optimizers without state: by the plan, or by two plans if only step() can make the state."""

import copy
import functools
from contextlib import nullcontext

import pytest
import torch
from test_training_failures import Net, no_memory
from test_training_optimizers import Numbers
from test_training_step import OPTIMIZERS, batches, eager, loss_of, net, quiet, same, tensors  # noqa: F401
from torch import optim

import torch_reformer

MAKES = {name: make for name, make in OPTIMIZERS.items() if name not in ("sgd", "adagrad")}
MAKES |= {
    "rate as a tensor": lambda params: optim.Adam(params, torch.tensor(1e-2, dtype=torch.float64)),
    "maximize": functools.partial(optim.SGD, lr=0.05, momentum=0.9, maximize=True),
    "dampening": functools.partial(optim.SGD, lr=0.05, momentum=0.9, dampening=0.1),
    "traced": functools.partial(optim.RMSprop, lr=1e-3),
}


def with_eager_calls(loss):
    """The loss, and the number of its calls that no plan made."""
    calls = [0]

    def counted(model, *batch):
        if not torch.compiler.is_compiling():
            calls[0] += 1
        return loss(model, *batch)

    return counted, calls


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"keep_grads": True}])
@pytest.mark.parametrize("name", MAKES)
def test_state_after_the_first_step(name, options):
    """Has the same names in the same order as PyTorch's, also where it makes the state."""
    one, other = net(), net()
    first, second = MAKES[name](one.parameters()), MAKES[name](other.parameters())
    loss, calls = with_eager_calls(loss_of)
    step = torch_reformer.training_step(other, loss, second, **options)
    for batch in batches(3):
        same([step(*batch)], eager(one, first, loss_of, [batch], accumulate=options.get("accumulate", 1)))
        expected, actual = first.state_dict()["state"], second.state_dict()["state"]
        assert [[*own] for own in actual.values()] == [[*own] for own in expected.values()]
        same(actual, expected)
        same([*other.state_dict().values()], [*one.state_dict().values()])
    assert step.reason is None and not calls[0]


def test_groups_of_which_one_begins_by_pytorch():
    def make(model):
        groups = [{"params": [model.conv.weight], "dampening": 0.5}, {"params": [*model.head.parameters()]}]
        return optim.SGD(groups, 0.05, momentum=0.9)

    one, other = net(), net()
    first, second = make(one), make(other)
    step = torch_reformer.training_step(other, loss_of, second)
    same([step(*batch) for batch in batches(3)], eager(one, first, loss_of, batches(3)))
    same(tensors(other, second), tensors(one, first))


def test_parameters_that_get_gradients_later():
    """They have no state before, as in PyTorch, and may be in a group that is added."""
    one, other = net(), net()
    optimizers = [
        optim.Adagrad([*model.conv.parameters(), *model.unused.parameters()], 0.1, initial_accumulator_value=0.2)
        for model in (one, other)
    ]
    uses = [False]

    def loss(model, x, y):
        value = loss_of(model, x, y)
        return value + model.unused(x[:, 0, :2, 0]).square().mean() if uses[0] else value

    counted, calls = with_eager_calls(loss)
    step = torch_reformer.training_step(other, counted, optimizers[1])
    for number, batch in enumerate(batches(6)):
        uses[0] = number >= 2
        if number == 4:
            for model, optimizer in zip((one, other), optimizers, strict=True):
                model.zero_grad()
                optimizer.add_param_group({"params": [*model.head.parameters()]})
        same([step(*batch)], eager(one, optimizers[0], loss, [batch]))
        same(optimizers[1].state_dict()["state"], optimizers[0].state_dict()["state"])
    assert calls[0] == 0 and step.reason is None
    same([*other.state_dict().values()], [*one.state_dict().values()])


@pytest.mark.parametrize("name", ["adamw", "nesterov", "adagrad"])
def test_state_that_is_cleared(name):
    """The next step begins anew, by the same plan."""
    one, other = net(), net()
    first, second = OPTIMIZERS[name](one.parameters()), OPTIMIZERS[name](other.parameters())
    loss, calls = with_eager_calls(loss_of)
    step = torch_reformer.training_step(other, loss, second)
    for number, batch in enumerate(batches(6)):
        if number == 3:
            first.state.clear(), second.state.clear()
        same([step(*batch)], eager(one, first, loss_of, [batch]))
    assert calls[0] == 0 and len(step.reports) == 1
    same(tensors(other, second), tensors(one, first))


@pytest.mark.filterwarnings("ignore:a plan has operators")
@pytest.mark.parametrize("name", ["adamw", "amsgrad", "nesterov"])
def test_a_first_step_that_fails(name):
    """Its state is as good as none: eager PyTorch may go on with it, as the plan does."""
    data = batches(4)
    for goes_on_by_plan in (True, False):
        one = Net()
        other = copy.deepcopy(one)
        first, second = OPTIMIZERS[name](one.parameters()), OPTIMIZERS[name](other.parameters())
        step = torch_reformer.training_step(other, loss_of, second)
        with no_memory():
            step(*data[0])
        assert not any(tensor.any() for own in second.state.values() for tensor in own.values())
        other.load_state_dict(one.state_dict())  # buffers may have changed
        eager(one, first, loss_of, data[1:])
        if goes_on_by_plan:
            for batch in data[1:]:
                step(*batch)
        else:
            eager(other, second, loss_of, data[1:])
        same(tensors(other, second), tensors(one, first))


@pytest.mark.parametrize("make", [functools.partial(optim.RMSprop, lr=1e-3), Numbers])
def test_steps_that_begin_anew(make):
    """Another parameter gets a gradient, or no plan has the update: the plan is made after a step by two plans."""
    one, other = net(), net()
    first, second = make(one.parameters()), make(other.parameters())
    uses = [False]

    def loss(model, x, y):
        value = loss_of(model, x, y)
        return value + model.unused(x[:, 0, :2, 0]).square().mean() if uses[0] else value

    counted, calls = with_eager_calls(loss)
    step = torch_reformer.training_step(other, counted, second)
    with pytest.warns(UserWarning, match="cannot be traced") if make is Numbers else nullcontext():
        for number, batch in enumerate(batches(6)):
            uses[0] = number >= 3
            same([step(*batch)], eager(one, first, loss, [batch]))
    assert calls[0] == 0 and step.reason is None
    same(tensors(other, second), tensors(one, first))
