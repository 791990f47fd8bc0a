"""Whole training steps against eager ones with the same optimizer."""

import copy
import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
import training_models
from torch import nn

import torch_reformer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 5)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


class Own(torch.optim.Optimizer):
    """Gradient descent, with something else that a subclass does for each parameter."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.change(group, param)


class Lion(Own):
    def change(self, group, param):
        momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
        param.add_(momentum.lerp(param.grad, 0.1).sign(), alpha=-group["lr"])
        momentum.lerp_(param.grad, 0.01)


OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.05),
    "nesterov": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=1e-2, weight_decay=0.01),
    "amsgrad": functools.partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
    "adamw": functools.partial(torch.optim.AdamW, lr=1e-2),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=1e-2),
}


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def batches(count=20, rows=4):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, rows, 3, 8, 8, generator=generator, dtype=torch.float64)
    return list(zip(images, torch.randint(5, (count, rows), generator=generator), strict=True))


def net():
    torch.manual_seed(0)
    return Net().double()


def eager(model, optimizer, loss, batches, clip=None, accumulate=1, scheduler=None):
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        parts = [loss(model, *part) for part in zip(*(tensor.chunk(accumulate) for tensor in batch), strict=True)]
        for part in parts:
            (part / accumulate).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(sum(parts).detach() / accumulate)
        if scheduler:
            scheduler.step()
    return losses


def same(one, other, tolerance=1e-10):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def tensors(model, optimizer):
    state = optimizer.state_dict()["state"]
    return [*model.state_dict().values(), *(value for own in state.values() for value in own.values())]


@pytest.fixture(autouse=True)
def quiet():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*two plans.*")
        warnings.filterwarnings("error", ".*lr_scheduler.*")
        yield


@pytest.mark.parametrize(
    "options", [{}, {"clip_grad_norm": 0.1}, {"accumulate": 2}, {"clip_grad_norm": 0.1, "accumulate": 2}]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_against_eager(name, options):
    one, other = net(), net()
    first, second = OPTIMIZERS[name](one.parameters()), OPTIMIZERS[name](other.parameters())
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5) for optimizer in (first, second)]
    step = torch_reformer.training_step(other, loss_of, second, **options)
    clip, accumulate = options.get("clip_grad_norm"), options.get("accumulate", 1)
    expected = eager(one, first, loss_of, batches(), clip, accumulate, schedulers[0])
    actual = []
    for batch in batches():
        actual.append(step(*batch))
        schedulers[1].step()
    assert step.reason is None
    graphs = 2 if accumulate > 1 else 1
    assert len(step.reports) == graphs  # learning rates change without another plan
    assert all(param.grad is None for param in other.parameters())
    same(actual, expected)
    same(tensors(other, second), tensors(one, first))


def test_update_is_in_the_plan():
    model = net()
    step = torch_reformer.training_step(model, loss_of, torch.optim.AdamW(model.parameters()))
    for batch in batches(2):
        step(*batch)
    (report,) = step.reports
    assert "_fused_adamw_" in str(report)


def test_version_counters_count_updates():
    model = net()
    step = torch_reformer.training_step(model, loss_of, torch.optim.SGD(model.parameters(), 0.1))
    version = model.head.weight._version
    step(*batches(1)[0])
    assert model.head.weight._version > version


@pytest.mark.parametrize("make", [OPTIMIZERS["adamw"], torch.optim.RMSprop])
def test_checkpoints_of_eager_and_back(make):
    one, other = net(), net()
    first, second = make(one.parameters()), make(other.parameters())
    step = torch_reformer.training_step(other, loss_of, second)
    data = batches(9)
    for batch in data[:3]:
        step(*batch)
    eager(one, first, loss_of, data[:3])
    eager(one, first, loss_of, data[3:6])
    other.load_state_dict(one.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for batch in data[6:8]:
        step(*batch)
    eager(one, first, loss_of, data[6:8])
    same(tensors(other, second), tensors(one, first))
    one.load_state_dict(other.state_dict())
    first.load_state_dict(copy.deepcopy(second.state_dict()))
    same(eager(one, first, loss_of, data[8:]), [step(*data[8])])
    assert len(step.reports) == 1


def test_gradients_are_kept():
    one, other = net(), net()
    step = torch_reformer.training_step(other, loss_of, OPTIMIZERS["sgd"](other.parameters()), keep_grads=True)
    (batch,) = batches(1)
    eager(one, OPTIMIZERS["sgd"](one.parameters()), loss_of, [batch])
    step(*batch)
    same([param.grad for param in other.parameters()], [param.grad for param in one.parameters()])


def test_settings_change():
    one, other = net(), net()
    first, second = OPTIMIZERS["nesterov"](one.parameters()), OPTIMIZERS["nesterov"](other.parameters())
    step = torch_reformer.training_step(other, loss_of, second)
    for number, batch in enumerate(batches(6)):
        for optimizer in (first, second):
            optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 * (number // 2)
        eager(one, first, loss_of, [batch])
        step(*batch)
    same(tensors(other, second), tensors(one, first))


def test_settings_that_change_in_each_step():
    """The optimizer's step() runs by itself then, after one plan of the gradients."""
    one, other = net(), net()
    first, second = OPTIMIZERS["nesterov"](one.parameters()), OPTIMIZERS["nesterov"](other.parameters())
    step = torch_reformer.training_step(other, loss_of, second)
    with pytest.warns(UserWarning, match="again and again"):
        for number, batch in enumerate(batches(12)):
            for optimizer in (first, second):
                optimizer.param_groups[0]["momentum"] = 0.9 - 0.01 * number
            eager(one, first, loss_of, [batch])
            step(*batch)
    same(tensors(other, second), tensors(one, first))
    assert len(step.reports) < 6


def test_parameters_that_begin_to_be_trained():
    one, other = net(), net()
    optimizers = [OPTIMIZERS["sgd"](model.conv.parameters()) for model in (one, other)]
    step = torch_reformer.training_step(other, loss_of, optimizers[1])
    optimizers[1].register_step_post_hook(lambda *_: None)
    data = batches(4)
    with pytest.warns(UserWarning, match="hooks"):
        for batch in data[:2]:
            step(*batch)
    eager(one, optimizers[0], loss_of, data[:2])
    for model, optimizer in zip((one, other), optimizers, strict=True):
        optimizer.add_param_group({"params": [*model.head.parameters()]})
        model.zero_grad()
    eager(one, optimizers[0], loss_of, data[2:])
    for batch in data[2:]:
        step(*batch)
    same([*other.state_dict().values()], [*one.state_dict().values()])


def test_results_besides_the_loss():
    model = net()

    def loss(model, x, y):
        out = model(x)
        return F.cross_entropy(out, y), {"out": out}

    step = torch_reformer.training_step(model, loss, OPTIMIZERS["adam"](model.parameters()))
    for batch in batches(3):
        expected = loss(copy.deepcopy(model), *batch)
        actual = step(*batch)
        same(actual[1]["out"], expected[1]["out"].detach())
        assert not actual[0].requires_grad


def test_bf16_autocast():
    one, other = net().float(), net().float()

    def loss(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x.float()), y)

    step = torch_reformer.training_step(other, loss, OPTIMIZERS["sgd"](other.parameters()))
    expected = eager(one, OPTIMIZERS["sgd"](one.parameters()), loss, batches())
    same([step(*batch) for batch in batches()], expected, 2e-2)


def test_dropout_repeats_by_a_seed():
    def run():
        model = net()
        step = torch_reformer.training_step(
            model,
            lambda model, x, y: F.cross_entropy(F.dropout(model(x), 0.5), y),
            OPTIMIZERS["sgd"](model.parameters()),
        )
        torch.manual_seed(3)
        return torch.stack([step(*batch) for batch in batches(5)])

    first = run()
    assert torch.equal(first, run())


def test_branches_on_values():
    model = net()

    def loss(model, x, y):
        value = F.cross_entropy(model(x), y)
        return value * 2 if value.item() > 100 else value

    one = net()
    step = torch_reformer.training_step(model, loss, OPTIMIZERS["sgd"](model.parameters()))
    with pytest.warns(UserWarning, match="torch.where"):
        losses = [step(*batch) for batch in batches(3)]
    same(losses, eager(one, OPTIMIZERS["sgd"](one.parameters()), loss_of, batches(3)))
    assert "torch.where" in step.reason


def test_an_exception_leaves_the_state():
    model = net()

    def loss(model, x, y):
        if x.shape[0] == 3:
            raise KeyError("three")
        return loss_of(model, x, y)

    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = torch_reformer.training_step(model, loss, optimizer)
    for batch in batches(2):
        step(*batch)
    before = copy.deepcopy([list(model.parameters()), optimizer.state_dict()])
    (x, y) = batches(1)[0]
    with pytest.raises(KeyError):
        step(x[:3], y[:3])
    with pytest.raises(IndexError):  # a class that does not exist
        step(x, y + 100)
    same([list(model.parameters()), optimizer.state_dict()], before, 0)  # buffers change as in eager PyTorch
    assert step.reason is None
    step(x, y)


def test_distributed_parameters_are_refused():
    model = net()
    model.head.weight.device_mesh = None  # as DTensors have one
    with pytest.raises(TypeError, match="FSDP"):
        torch_reformer.training_step(model, loss_of, OPTIMIZERS["sgd"](model.parameters()))


def test_wrong_arguments():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for options in ({"accumulate": 0}, {"clip_grad_norm": -1}, {"mode": "fast"}, {"memory_budget": 2}):
        with pytest.raises(ValueError):
            torch_reformer.training_step(model, loss_of, optimizer, **options)
    with pytest.raises(TypeError):
        torch_reformer.training_step(loss_of, loss_of, optimizer)


@pytest.mark.parametrize("name", sorted(training_models.MODELS.keys() - {"decision"}))
def test_models(name):
    """Models of all kinds, by SGD: its parameters are as far from eager's as gradients are."""
    one, inputs = training_models.make(name)
    one = one.double()
    inputs = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    other = copy.deepcopy(one)

    def loss(model, *batch):
        return model(*batch)

    step = torch_reformer.training_step(other, loss, torch.optim.SGD(other.parameters(), 1e-3, momentum=0.9))
    expected = eager(one, torch.optim.SGD(one.parameters(), 1e-3, momentum=0.9), loss, [inputs] * 4)
    same([step(*inputs) for _ in range(4)], expected)
    assert step.reason is None
    same([*other.state_dict().values()], [*one.state_dict().values()])


def test_batches_of_another_size():
    one, other = net(), net()
    data = [batch for rows in (4, 3, 5, 6, 4) for batch in batches(2, rows)]
    step = torch_reformer.training_step(other, loss_of, OPTIMIZERS["adamw"](other.parameters()))
    expected = eager(one, OPTIMIZERS["adamw"](one.parameters()), loss_of, data)
    same([step(*batch) for batch in data], expected)
    assert step.reason is None


def test_checkpoints_of_batch_norms_run_by_two_plans():
    one, other = net(), net()

    def loss(model, x, y):
        return F.cross_entropy(torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False), y)

    step = torch_reformer.training_step(other, loss, OPTIMIZERS["sgd"](other.parameters()))
    with pytest.warns(UserWarning, match="two plans"):
        losses = [step(*batch) for batch in batches(3)]
    expected = eager(one, OPTIMIZERS["sgd"](one.parameters()), loss_of, batches(3))
    same(losses, expected)


def doubled(model):
    """Hooks that double gradients: one sees a gradient, the other what is accumulated."""
    model.head.weight.register_hook(lambda grad: grad * 2)
    model.head.bias.register_post_accumulate_grad_hook(lambda param: setattr(param, "grad", param.grad * 2))


def test_hooks_of_parameters():
    one, other = net(), net()
    step = torch_reformer.training_step(other, loss_of, OPTIMIZERS["sgd"](other.parameters()))
    same([step(*batches(1)[0])], eager(one, OPTIMIZERS["sgd"](one.parameters()), loss_of, batches(1)))
    one.load_state_dict(other.state_dict())
    doubled(one), doubled(other)
    step.optimizer.state.clear()
    with pytest.warns(UserWarning, match="hooks"):
        losses = [step(*batch) for batch in batches(3)]
    same(losses, eager(one, OPTIMIZERS["sgd"](one.parameters()), loss_of, batches(3)))
    same([*other.state_dict().values()], [*one.state_dict().values()])


def test_hooks_inside_of_the_loss():
    def loss(model, x, y):
        scores = model(x)
        scores.register_hook(lambda grad: grad * 3)
        return F.cross_entropy(scores, y)

    one, other = net(), net()
    step = torch_reformer.training_step(other, loss, OPTIMIZERS["sgd"](other.parameters()))
    losses = [step(*batch) for batch in batches(3)]
    same(losses, eager(one, OPTIMIZERS["sgd"](one.parameters()), loss, batches(3)))
    assert step.reason is None


def test_other_parameters_of_the_model():
    """A parameter that takes another's place is trained if the optimizer has it."""
    one, other = net(), net()
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in (one, other)]
    step = torch_reformer.training_step(other, loss_of, optimizers[1])
    data = batches(4)
    eager(one, optimizers[0], loss_of, data[:2])
    for batch in data[:2]:
        step(*batch)
    for model, optimizer in zip((one, other), optimizers, strict=True):
        model.head.weight = nn.Parameter(model.head.weight.detach() * 2)
        optimizer.add_param_group({"params": [model.head.weight]})
    eager(one, optimizers[0], loss_of, data[2:])
    for batch in data[2:]:
        step(*batch)
    same([*other.state_dict().values()], [*one.state_dict().values()])
