"""Whole training steps whose optimizer's own step() is traced."""

import copy
import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from test_training_step import Lion, Own, batches, eager, loss_of, net, same, tensors
from torch import nn, optim

import torch_reformer


class Rebinding(Own):
    """Puts other tensors in the place of parameters and state, and changes gradients in place."""

    def change(self, group, param):
        param.grad.mul_(2)
        state = self.state[param]
        state["momentum"] = param.grad if "momentum" not in state else state["momentum"] * 0.9 + param.grad
        param.data = param.data - state["momentum"] * group["lr"]


class Lists(Own):
    """Adam without corrections by functions of lists, for some of which there is no function of a single tensor."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            grads = [param.grad for param in params]
            for param in params:
                for name in ("first", "second"):
                    self.state[param].setdefault(name, torch.zeros_like(param))
            first, second = ([self.state[param][name] for param in params] for name in ("first", "second"))
            torch._foreach_lerp_(first, grads, 0.1)
            torch._foreach_mul_(second, 0.9)
            torch._foreach_addcmul_(second, grads, grads, 0.1)
            scale = torch._foreach_sqrt(second)
            torch._foreach_maximum_(scale, 1e-3)
            torch._foreach_addcdiv_(params, first, scale, value=-group["lr"])
            torch._foreach_add_(params, params, alpha=-group["lr"] * 0.01)


class Earlier(Own):
    """Keeps earlier parameters and gradients, exchanges two tensors, and copies by views."""

    def change(self, group, param):
        state = self.state[param]
        for name in ("grad", "last", "before", "even", "odd"):
            state.setdefault(name, torch.zeros_like(param))
        state["before"].view(-1).copy_(state["last"].view(-1))
        state["last"].copy_(param)
        state["even"], state["odd"] = state["odd"], state["even"].copy_(state["grad"])
        state["grad"].copy_(param.grad)
        param.add_(param.grad + 0.1 * (state["even"] + param - state["before"]), alpha=-group["lr"])


OPTIMIZERS = {
    "rmsprop": optim.RMSprop,
    "centered rmsprop": functools.partial(optim.RMSprop, centered=True, momentum=0.9, weight_decay=0.01),
    "adadelta": optim.Adadelta,
    "radam": functools.partial(optim.RAdam, lr=1e-2),
    "nadam": functools.partial(optim.NAdam, weight_decay=0.01, decoupled_weight_decay=True),
    "adamax": functools.partial(optim.Adamax, maximize=True),
    "asgd": functools.partial(optim.ASGD, t0=2),
    "rprop": optim.Rprop,
    "lion": Lion,
    "rebinding": Rebinding,
    "lists": Lists,
    "earlier": Earlier,
}


@pytest.fixture(autouse=True)
def quiet():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(two plans|after the plan).*")
        yield


class Scaled(nn.Module):
    """A network with a parameter of no dimensions."""

    def __init__(self):
        super().__init__()
        self.net, self.scale = net(), nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x):
        return self.net(x) * self.scale


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.1, "accumulate": 2}])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_against_eager(name, options):
    one, other = Scaled(), Scaled()
    first, second = OPTIMIZERS[name](one.parameters()), OPTIMIZERS[name](other.parameters())
    schedulers = [optim.lr_scheduler.StepLR(optimizer, 3, 0.5) for optimizer in (first, second)]
    step = torch_reformer.training_step(other, loss_of, second, **options)
    expected = eager(one, first, loss_of, batches(10), *options.values(), scheduler=schedulers[0])
    actual = []
    for batch in batches(10):
        actual.append(step(*batch))
        schedulers[1].step()
    assert step.reason is None
    assert len(step.reports) == options.get("accumulate", 1)  # learning rates change without another plan
    tolerance = 1e-7 if name == "nadam" else 1e-10  # a factor of NAdam's state is rounded to fp32 in each step
    same(actual, expected, tolerance)
    same(tensors(other, second), tensors(one, first), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_parameters(dtype):
    one, other = net().to(dtype), net().to(dtype)
    first, second = optim.RMSprop(one.parameters(), 1e-3), optim.RMSprop(other.parameters(), 1e-3)
    data = [(x.to(dtype), y) for x, y in batches(8)]
    step = torch_reformer.training_step(other, loss_of, second)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 3e-2}[dtype]
    same([step(*batch) for batch in data], eager(one, first, loss_of, data), tolerance)
    assert "aten::copy_" not in str(step.reports[0])  # kernels write parameters and state in place


@pytest.mark.parametrize(
    ("kind", "dtype"), [(optim.SGD, torch.float16), *((kind, torch.bfloat16) for kind in (optim.SGD, optim.AdamW))]
)
def test_narrow_parameters_change(kind, dtype):
    """PyTorch's fused SGD changes none of 32 such parameters on a CPU."""
    one = nn.Linear(32, 8).to(dtype)
    other = copy.deepcopy(one)
    x = torch.randn(16, 32).to(dtype)
    first, second = kind(one.parameters(), 0.1), kind(other.parameters(), 0.1)

    def loss(model, x):
        return model(x).float().square().sum()

    torch_reformer.training_step(other, loss, second)(x)
    loss(one, x).backward()
    first.step()
    same([*other.parameters()], [*one.parameters()], 2e-2)


def test_gradients_are_kept():
    one, other = net(), net()
    step = torch_reformer.training_step(other, loss_of, Rebinding(other.parameters()), keep_grads=True)
    data = batches(3)
    eager(one, Rebinding(one.parameters()), loss_of, data)
    for batch in data:
        step(*batch)
    same([param.grad for param in other.parameters()], [param.grad for param in one.parameters()])


class Numbers(Own):
    def change(self, group, param):
        param.add_(param.grad, alpha=-group["lr"] if param.grad.abs().max().item() > 1e-3 else group["lr"])


class Counting(Own):
    def change(self, group, param):
        state = self.state[param]
        state["count"] = state.get("count", 0) + 1
        param.add_(param.grad, alpha=-group["lr"] / state["count"])


class Settings(Own):
    def change(self, group, param):
        group["count"] = group.get("count", 0) + 1
        param.add_(param.grad, alpha=-group["lr"] / group["count"])


class Attributes(Own):
    counts = ()

    def change(self, group, param):
        self.counts = (*self.counts, 1)
        param.add_(param.grad, alpha=-group["lr"] / len(self.counts))


def outside(counts=[0]):  # noqa: B006
    counts[0] += 1
    return counts[0]


class Outside(Own):
    def change(self, group, param):
        param.add_(param.grad, alpha=-group["lr"] * (outside() % 7))


class Sharing(Own):
    def change(self, group, param):
        state = self.state[param]
        state.setdefault("momentum", torch.zeros_like(param))
        state.setdefault("same", state["momentum"].view(-1))
        state["momentum"].add_(param.grad)
        param.add_(state["same"].view_as(param), alpha=-group["lr"])


REFUSED = {
    Numbers: "cannot be traced",
    Counting: "'count' outside of tensors",
    Settings: "again and again",
    Attributes: "changes settings or attributes",
    Outside: "differs from call to call",
    Sharing: "share memory",
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_traced(kind, accumulate):
    """In the step that finds it out no micro-batch runs twice, which would update statistics twice."""
    one, other = net(), net()
    first, second = kind(one.parameters()), kind(other.parameters())
    step = torch_reformer.training_step(other, loss_of, second, accumulate=accumulate)
    outside.__defaults__[0][0] = 0
    expected = eager(one, first, loss_of, batches(6), accumulate=accumulate)
    outside.__defaults__[0][0] = 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        actual = [step(*batch) for batch in batches(6)]
    (warning,) = (str(each.message) for each in seen if "after the plan" in str(each.message))
    assert REFUSED[kind] in warning
    assert step.reason is None
    if kind is not Outside:  # traces call the function, too
        same([*actual, *other.state_dict().values()], [*expected, *one.state_dict().values()])


def test_step_of_the_instance():
    """A step() that the user puts in the place of the class's runs after the plan."""
    model = net()
    optimizer = optim.RMSprop(model.parameters())
    calls = []
    optimizer.step = lambda: calls.append(1)
    step = torch_reformer.training_step(model, loss_of, optimizer)
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.warns(UserWarning, match="not that of its class"):
        step(*batches(1)[0])
    same(list(model.parameters()), before, 0)
    assert calls == [1]


def test_nan_and_infinity_reach_parameters():
    one, other = net(), net()
    first, second = OPTIMIZERS["rmsprop"](one.parameters()), OPTIMIZERS["rmsprop"](other.parameters())
    data = batches(4)
    data[2][0][0] = float("inf")
    step = torch_reformer.training_step(other, loss_of, second)
    expected, actual = eager(one, first, loss_of, data), [step(*batch) for batch in data]
    torch.testing.assert_close(actual, expected, equal_nan=True)
    torch.testing.assert_close(tensors(other, second), tensors(one, first), equal_nan=True)
    assert tensors(other, second)[0].isnan().any()


def test_an_exception_leaves_counters():
    """Counters follow from no gradient, but change at the end of the plan all the same."""
    model = net()
    optimizer = optim.RMSprop(model.parameters())
    step = torch_reformer.training_step(model, lambda model, x, y: F.cross_entropy(model(x), y), optimizer)
    x, y = batches(1)[0]
    step(x, y), step(x, y)
    before = [tensor.clone() for tensor in (*model.parameters(), *tensors(nn.Module(), optimizer))]
    with pytest.raises(IndexError):
        step(x, y + 100)
    same([*model.parameters(), *tensors(nn.Module(), optimizer)], before, 0)
