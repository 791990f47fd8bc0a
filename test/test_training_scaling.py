"""Loss scaling in whole training steps, against eager ones with a scaler of the same settings."""

import copy

import pytest
import torch
import torch.nn.functional as F
from test_training_step import net, quiet, same, tensors  # noqa: F401
from torch import nn, optim

import torch_reformer

INFINITE = 3, 4, 8  # steps with gradients that are not finite


def batches(count=12):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 4, 3, 8, 8, generator=generator)
    images[INFINITE[0], 0] = float("inf")
    images[INFINITE[1], 1, 0, 0] = float("nan")
    return list(zip(images, torch.randint(5, (count, 4), generator=generator), strict=True))


class Plain(nn.Module):
    """Without batch norms, whose buffers would stay infinite."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def overflowing(model, x, y):
    """A loss whose gradient is infinite in fp16 with a large scale."""
    with torch.autocast("cpu", torch.float16):
        return F.cross_entropy(model(x), y) * 100


def scaler(**options):
    return torch.amp.GradScaler("cpu", **({"init_scale": 1024.0, "growth_interval": 3} | options))


def eager(model, optimizer, scaler, loss, batches, clip=None, accumulate=1):
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        parts = [loss(model, *part) for part in zip(*(tensor.chunk(accumulate) for tensor in batch), strict=True)]
        for part in parts:
            scaler.scale(part / accumulate).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(sum(parts).detach() / accumulate)
    return losses


OPTIMIZERS = {
    "adamw": lambda params: optim.AdamW(params, 1e-2),
    "momentum": lambda params: optim.SGD(params, 1e-2, momentum=0.9),
    "adagrad": lambda params: optim.Adagrad(params, 1e-2),
    "rmsprop": lambda params: optim.RMSprop(params, 1e-3, momentum=0.9),
}


def close(one, other, tolerance):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.1, "accumulate": 2}])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_against_eager(name, options):
    one, other = Plain(), Plain()
    first, second = OPTIMIZERS[name](one.parameters()), OPTIMIZERS[name](other.parameters())
    scalers = scaler(), scaler()
    expected = eager(one, first, scalers[0], loss_of, batches(), *options.values())
    step = torch_reformer.training_step(other, loss_of, second, grad_scaler=scalers[1], **options)
    actual = [step(*batch) for batch in batches()]
    assert step.reason is None and len(step.reports) == options.get("accumulate", 1)
    close(actual, expected, 1e-4)
    close(tensors(other, second), tensors(one, first), 1e-4)
    assert scalers[1].state_dict() == scalers[0].state_dict()
    assert not any(tensor.isnan().any() for tensor in tensors(other, second))
    steps = [state["step"] for state in second.state.values() if "step" in state]
    assert all(int(count) == 12 - len(INFINITE[:2]) for count in steps)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_first_step_without_an_update(name):
    """State that a plan has made by then is as good as none."""
    one, other = Plain(), Plain()
    first, second = OPTIMIZERS[name](one.parameters()), OPTIMIZERS[name](other.parameters())
    scalers, data = (scaler(), scaler()), batches()[INFINITE[0] :]
    expected = eager(one, first, scalers[0], loss_of, data)
    step = torch_reformer.training_step(other, loss_of, second, grad_scaler=scalers[1])
    close([step(*batch) for batch in data], expected, 1e-4)
    close(tensors(other, second), tensors(one, first), 1e-4)
    assert scalers[1].state_dict() == scalers[0].state_dict()


def test_overflow_in_fp16():
    one, other = Plain(), Plain()
    scalers = scaler(init_scale=2.0**18), scaler(init_scale=2.0**18)
    data = [(torch.nan_to_num(x, 0, 0, 0), y) for x, y in batches()]
    expected = eager(one, OPTIMIZERS["adamw"](one.parameters()), scalers[0], overflowing, data)
    assert scalers[0].get_scale() < 2.0**18
    optimizer = OPTIMIZERS["adamw"](other.parameters())
    step = torch_reformer.training_step(other, overflowing, optimizer, grad_scaler=scalers[1])
    close([step(*batch) for batch in data], expected, 2e-2)
    assert scalers[1].get_scale() < 2.0**18  # kernels keep more in fp32, so the plan overflows a little later
    assert all(tensor.isfinite().all() for tensor in tensors(other, optimizer))


def test_states_of_scalers():
    """Scale and settings may be loaded and set at any time; a scaler that was not used begins in the plan."""
    model, data = Plain(), batches()
    step = torch_reformer.training_step(model, loss_of, optim.SGD(model.parameters(), 1e-3), grad_scaler=scaler())
    scale = step.grad_scaler
    step(*data[0])
    assert scale.get_scale() == 1024 and scale.state_dict()["_growth_tracker"] == 1
    scale.load_state_dict(scaler(init_scale=64.0).state_dict() | {"_growth_tracker": 2})
    step(*data[1])
    assert scale.get_scale() == 128 and scale.state_dict()["_growth_tracker"] == 0
    scale.set_backoff_factor(0.25)
    step(*data[INFINITE[0]])
    assert scale.get_scale() == 32
    assert step.reason is None


def test_scaler_that_is_off():
    one, other = net(), net()
    data = [(x.double(), y) for x, y in batches()[:3]]
    off = torch.amp.GradScaler("cpu", enabled=False)
    step = torch_reformer.training_step(other, loss_of, optim.SGD(other.parameters(), 0.1), grad_scaler=off)
    actual = [step(*batch) for batch in data]
    step = torch_reformer.training_step(one, loss_of, optim.SGD(one.parameters(), 0.1))
    same(actual, [step(*batch) for batch in data], 0)


class Counting(optim.SGD):
    def step(self):
        self.counts = getattr(self, "counts", 0) + 1
        super().step()


def test_update_that_is_not_in_the_plan():
    """The scaler runs such an optimizer's step() if all gradients are finite."""
    one, other = Plain(), Plain()
    scalers = scaler(), scaler()
    expected = eager(one, optim.SGD(one.parameters(), 0.1), scalers[0], loss_of, batches())
    optimizer = Counting(other.parameters(), 0.1)
    step = torch_reformer.training_step(other, loss_of, optimizer, grad_scaler=scalers[1])
    with pytest.warns(UserWarning, match="scaler"):
        actual = [step(*batch) for batch in batches()]
    close(actual, expected, 1e-4)
    assert scalers[1].state_dict() == scalers[0].state_dict()
    assert optimizer.counts == 10


def test_wrong_scalers():
    model = Plain()
    optimizer = optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match="GradScaler"):
        torch_reformer.training_step(model, loss_of, optimizer, grad_scaler=2.0)
    half = copy.deepcopy(model).half()
    with pytest.raises(ValueError, match="fp16"):
        torch_reformer.training_step(half, loss_of, optim.SGD(half.parameters(), 0.1), grad_scaler=scaler())
