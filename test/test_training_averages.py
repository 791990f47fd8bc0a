"""Averaged weights in whole training steps, against eager ones that call update_parameters()."""

import copy
import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from test_training_scaling import Plain, close, scaler
from test_training_scaling import batches as infinite_batches
from test_training_scaling import eager as scaled_steps
from test_training_step import Net, Own, batches, loss_of, net, quiet, same  # noqa: F401
from test_training_step import eager as eager_steps
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import torch_reformer

decay = 0.8


def own(average, new, count):
    """An average that forgets less and less."""
    return average.lerp(new, torch.clamp(1 / (count + 1).to(new.dtype), min=1 - decay))


FUNCTIONS = {
    "ema": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
    "ema, one by one": {"avg_fn": get_ema_avg_fn(0.9)},
    "swa": {},
    "own": {"avg_fn": own},
}
OPTIMIZERS = {
    "sgd": functools.partial(optim.SGD, lr=0.05),
    "adamw": functools.partial(optim.AdamW, lr=1e-2),
    "rmsprop": functools.partial(optim.RMSprop, lr=1e-3),
}


def pair(optimizer="adamw", make=net, **options):
    """A model, its optimizer and its average, twice."""
    models = [make(), make()]
    return [(model, OPTIMIZERS[optimizer](model.parameters()), AveragedModel(model, **options)) for model in models]


def eager(model, optimizer, averaged, data, loss=loss_of, run=eager_steps, **options):
    losses = []
    for batch in data:
        losses += run(model, optimizer, loss=loss, batches=[batch], **options)
        averaged.update_parameters(model)
    return losses


def planned(model, optimizer, averaged, data, loss=loss_of, **options):
    step = torch_reformer.training_step(model, loss, optimizer, ema=averaged, **options)
    losses = [step(*batch) for batch in data]
    assert step.reason is None
    return losses, step


def states(model, averaged):
    return [*model.state_dict().values(), *averaged.state_dict().values()]


@pytest.mark.parametrize(
    ("function", "optimizer", "use_buffers"),
    [
        ("ema", "sgd", True),
        ("ema", "adamw", False),
        ("ema", "rmsprop", True),
        ("ema, one by one", "rmsprop", False),
        ("swa", "adamw", True),
        ("own", "sgd", False),
    ],
)
def test_against_eager(function, optimizer, use_buffers):
    one, other = pair(optimizer, **FUNCTIONS[function], use_buffers=use_buffers)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*after the plan.*")
        actual, step = planned(*other, batches(5))
    same(actual, eager(*one, batches(5)), 1e-12)
    # PyTorch computes a weight of plain averages in fp32.
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-7 if function == "swa" else 1e-12)
    assert len(step.reports) == 1
    assert int(other[2].n_averaged) == 5


def test_micro_batches_and_clipping():
    one, other = pair("rmsprop", **FUNCTIONS["ema"], use_buffers=True)
    actual, _ = planned(*other, batches(6), accumulate=2, clip_grad_norm=0.1, mode="reduce-overhead")
    same(actual, eager(*one, batches(6), accumulate=2, clip=0.1), 1e-12)
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop"])
def test_steps_that_a_scaler_skips(optimizer):
    """Weights are averaged after them, too."""
    one, other = pair(optimizer, Plain, **FUNCTIONS["ema"])
    scalers = scaler(), scaler()
    run = functools.partial(scaled_steps, scaler=scalers[0])
    expected = eager(*one, infinite_batches(), loss=scaled_loss, run=run)
    actual, _ = planned(*other, infinite_batches(), loss=scaled_loss, grad_scaler=scalers[1])
    close(actual, expected, 1e-4)
    close(states(other[0], other[2]), states(one[0], one[2]), 1e-4)
    assert int(other[2].n_averaged) == 12
    assert scalers[1].state_dict() == scalers[0].state_dict()


def scaled_loss(model, x, y):
    return F.cross_entropy(model(x), y)


def test_states_that_are_loaded():
    """A loaded average goes on; a counter of zero begins anew."""
    one, other = pair(**FUNCTIONS["ema"], use_buffers=True)
    data = batches(12)
    step = torch_reformer.training_step(other[0], loss_of, other[1], ema=other[2])
    for batch in data[:4]:
        step(*batch)
    eager(*one, data[:6])
    other[0].load_state_dict(one[0].state_dict())
    other[1].load_state_dict(copy.deepcopy(one[1].state_dict()))
    other[2].load_state_dict(one[2].state_dict())
    for batch in data[6:8]:
        step(*batch)
    eager(*one, data[6:8])
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)
    for averaged in (one[2], other[2]):
        averaged.n_averaged.zero_()
    for batch in data[8:]:
        step(*batch)
    eager(*one, data[8:])
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)
    assert int(other[2].n_averaged) == 4
    assert len(step.reports) == 1 and step.reason is None


class Frozen(Net):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.double()
        self.tied, self.conv.weight.requires_grad = self.head, False
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.count.add_(x.shape[0])
        return super().forward(x)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_frozen_and_tied_parameters_and_counters(use_buffers):
    one, other = pair("rmsprop", Frozen, **FUNCTIONS["ema"], use_buffers=use_buffers)
    with torch.no_grad():
        for model, *_ in (one, other):
            model.unused.weight.add_(1)  # after the average was made
            model.conv.weight.add_(1)
    actual, _ = planned(*other, batches(5))
    same(actual, eager(*one, batches(5)), 1e-12)
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)


def test_average_in_the_loss():
    """A mean teacher: the loss reads averaged weights before they change."""
    one, other = pair(**FUNCTIONS["ema"])

    def loss(averaged, model, x, y):
        with torch.no_grad():
            goal = averaged(x)
        return loss_of(model, x, y) + F.mse_loss(model(x), goal)

    actual, _ = planned(*other, batches(6), loss=functools.partial(loss, other[2]))
    same(actual, eager(*one, batches(6), loss=functools.partial(loss, one[2])), 1e-12)
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)


def test_losses_that_need_several_plans():
    """Operators of complex numbers run between plans."""
    one, other = pair("sgd", **FUNCTIONS["ema"], use_buffers=True)

    def loss(model, x, y):
        return loss_of(model, torch.fft.ifft2(torch.fft.fft2(model.conv.weight[:1, :, :1, :1] * x)).real, y)

    actual, _ = planned(*other, batches(6), loss=loss)
    same(actual, eager(*one, batches(6), loss=loss), 1e-10)
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
def test_an_exception_leaves_the_average(optimizer):
    _, (model, optimizer, averaged) = pair(optimizer, **FUNCTIONS["ema"], use_buffers=True)
    step = torch_reformer.training_step(model, loss_of, optimizer, ema=averaged)
    for batch in batches(3):
        step(*batch)
    before = copy.deepcopy(averaged.state_dict())
    (x, y), *_ = batches(1)
    with pytest.raises(IndexError):
        step(x, y + 100)
    same([*averaged.state_dict().values()], [*before.values()], 0)


@pytest.mark.parametrize("function", ["ema", "swa"])
def test_bf16(function):
    one, other = pair("rmsprop", lambda: net().bfloat16(), **FUNCTIONS[function])
    data = [(x.bfloat16(), y) for x, y in batches(30)]
    planned(*other, data), eager(*one, data)
    same(states(other[0], other[2])[:2], states(one[0], one[2])[:2], 3e-2)


@pytest.mark.parametrize(("optimizer", "use_buffers"), [("adamw", True), ("rmsprop", False)])
def test_updates_are_in_place(optimizer, use_buffers):
    """Kernels write parameters, running statistics and averages, but for counters of batches."""
    _, other = pair(optimizer, **FUNCTIONS["ema"], use_buffers=use_buffers)
    _, step = planned(*other, batches(3))
    copies = [line for line in step.reports[0].lines if line.kind == "aten::copy_"]
    assert sum(line.written for line in copies) <= 16
    version = other[2].module.head.weight._version
    step(*batches(1)[0])
    assert other[2].module.head.weight._version > version


def numbers(average, new, count):
    return average if count.item() > 2 else new


class Rate:
    value = 0.5


rate = Rate()


def of_object(average, new, count):
    return average.lerp(new, rate.value)


seen = []


def in_turn(average, new, count):
    seen.append(count)
    return average.lerp(new, len(seen) % 3 / 3)


class Subclass(AveragedModel):
    def update_parameters(self, model):
        super().update_parameters(model)


REFUSED = {
    "values": (lambda model: AveragedModel(model, avg_fn=numbers), "cannot be traced"),
    "objects": (lambda model: AveragedModel(model, avg_fn=of_object), "an object of the type Rate"),
    "lists": (lambda model: AveragedModel(model, avg_fn=in_turn), "an object of the type list"),
    "subclass": (Subclass, "not that of AveragedModel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_updated_after_the_plan(name):
    make, reason = REFUSED[name]
    models = [net(), net()]
    one, other = ((model, OPTIMIZERS["adamw"](model.parameters()), make(model)) for model in models)
    with pytest.warns(UserWarning, match="after the plan") as warned:
        seen.clear()
        actual, step = planned(*other, batches(5))
    (warning,) = (str(each.message) for each in warned if "after the plan" in str(each.message))
    assert reason in warning
    seen.clear()
    same(actual, eager(*one, batches(5)), 1e-12)
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)
    assert "_fused_adamw_" in str(step.reports[-1])


def test_numbers_that_change():
    """Numbers that a function reads are constants of the plan as long as they stay."""
    global decay
    one, other = pair(avg_fn=own)
    step = torch_reformer.training_step(other[0], loss_of, other[1], ema=other[2])
    data = batches(6)
    [step(*batch) for batch in data[:3]], eager(*one, data[:3])
    decay = 0.5
    with pytest.warns(UserWarning, match="reads changes"):
        [step(*batch) for batch in data[3:]]
    eager(*one, data[3:])
    decay = 0.8
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)


class Hooked(optim.AdamW):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.register_step_post_hook(lambda *_: None)


def test_updates_of_parameters_that_are_not_in_the_plan():
    models = [net(), net()]
    one, other = ((model, Hooked(model.parameters()), AveragedModel(model)) for model in models)
    with pytest.warns(UserWarning, match="hooks"):
        planned(*other, batches(4))
    eager(*one, batches(4))
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)


def test_losses_that_are_not_in_the_plan():
    one, other = pair(**FUNCTIONS["ema"])

    def loss(model, x, y):
        value = loss_of(model, x, y)
        return value * 2 if value.item() > 100 else value

    step = torch_reformer.training_step(other[0], loss, other[1], ema=other[2])
    with pytest.warns(UserWarning, match="two plans"):
        [step(*batch) for batch in batches(4)]
    eager(*one, batches(4))
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)


class Assigning(Net):
    """Puts a new tensor in the place of a buffer in each step."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.double()
        self.register_buffer("count", torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        self.count = self.count + x.mean()
        return super().forward(x)


def test_buffers_that_are_assigned():
    one, other = pair("sgd", Assigning, use_buffers=True)
    with pytest.warns(UserWarning, match="in the place of the model's"):
        planned(*other, batches(5))
    eager(*one, batches(5))
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-7)


def test_other_tensors():
    """Tensors that take the place of others between steps are averaged, and averages may be others, too."""
    one, other = pair(**FUNCTIONS["ema"], use_buffers=True)
    step = torch_reformer.training_step(other[0], loss_of, other[1], ema=other[2])
    data = batches(9)
    [step(*batch) for batch in data[:3]], eager(*one, data[:3])
    for model, _, averaged in (one, other):
        model.norm.running_mean = model.norm.running_mean * 2
        averaged.module.head.weight = nn.Parameter(averaged.module.head.weight.detach() * 2)
    [step(*batch) for batch in data[3:6]], eager(*one, data[3:6])
    for model, _, averaged in (one, other):
        model.unused, averaged.module.unused = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
        with torch.no_grad():
            [param.fill_(3) for module in (model, averaged.module) for param in module.unused.parameters()]
    [step(*batch) for batch in data[6:]], eager(*one, data[6:])
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-12)
    assert step.reason is None


def test_wrong_averages():
    model = net()
    for wrong in (copy.deepcopy(model), 0.9):
        with pytest.raises(TypeError, match="AveragedModel"):
            torch_reformer.training_step(model, loss_of, optim.SGD(model.parameters()), ema=wrong)


def test_buffers_among_the_arguments():
    class Masked(Net):
        def __init__(self):
            torch.manual_seed(0)
            super().__init__()
            self.double()
            self.register_buffer("mask", torch.rand(8, 8, dtype=torch.float64))

    def loss(model, x, y, mask):
        return loss_of(model, x * mask, y)

    one, other = pair("sgd", Masked, use_buffers=True)
    step = torch_reformer.training_step(other[0], loss, other[1], ema=other[2])
    with pytest.warns(UserWarning, match="takes weights as arguments"):
        [step(*batch, other[2].module.mask) for batch in batches(4)]
    eager(*one, batches(4), loss=lambda model, x, y: loss(model, x, y, one[2].module.mask))
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-7)
    step = torch_reformer.training_step(other[0], loss, other[1], ema=other[2])
    [step(*batch, other[0].mask) for batch in batches(4)]  # Dynamo knows buffers of modules that it traces
    eager(*one, batches(4), loss=lambda model, x, y: loss(model, x, y, one[0].mask))
    [step(*batch, other[0].mask * 2) for batch in batches(4)]
    eager(*one, batches(4), loss=lambda model, x, y: loss(model, x, y, one[0].mask * 2))
    same(states(other[0], other[2]), states(one[0], one[2]), 1e-7)
