"""Inputs that a training graph changes in place: gradients use their earlier values, as in eager PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_reformer import fuse
from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


def real(*sizes):
    return torch.randn(*sizes, dtype=torch.float64)


def outcome(function, *tensors):
    """The result, the gradients, and the inputs afterwards. Inputs with two dimensions or more require a gradient."""
    inputs = [each.clone().requires_grad_(each.dim() > 1 and each.is_floating_point()) for each in tensors]
    result = function(*inputs)
    result.backward(torch.linspace(1, 2, result.numel(), dtype=result.dtype).view(result.shape))
    return [result.detach(), *(each.grad for each in inputs), *(each.detach() for each in inputs)]


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend=reformer, fullgraph=True, **options)


def counted(x, b):
    y = x * b.sin()
    b.add_(1)
    return y


def copied(x, b):
    y = x * b.clone()
    b.mul_(2)
    return y


def copied_by_nothing_to_do(x, b):
    y = x * (b * 1 + 0)
    b.mul_(2)
    return y


def cast(x, b):
    y = x * b.to(torch.float64, copy=True) + x * b.float()
    b.mul_(2)
    return y


def by_views(x, b):
    y = x * b[1:].sin()[:1] + x * b.view(2, -1).exp().sum()
    b[:1].copy_(b[2:3])
    return y


def by_parts(x, b):
    one, other = b.split([2, b.shape[0] - 2])
    y = x * one.sin().sum() * other.unbind()[0].cos()
    other.add_(1)
    return y


def statistics(x, b):
    variance, mean = torch.var_mean(b.view(-1, 2), dim=0)
    y = x * variance[0] + (x * mean[1]).exp()
    b.zero_()
    return y


def compared(x, b):
    """The result is far larger than its operands, so that the backward would recompute it otherwise."""
    y = x * (b[:, None] == b).sum().double() + x[:, :1] * (b[:, None] > b).double().sum(0)[: x.shape[1]]
    b.copy_(b.flip(0))
    return y


def hidden(x, b):
    y = x * b.sin()
    b.data.add_(1)
    return y


def without_gradient(x, b):
    y = (x.exp() * b.sum()).sin()
    with torch.no_grad():
        x.mul_(0.5)
    return y


def with_gradient(x, b):
    x = x * 1
    y = x.exp() * b.sin()[0]
    x.mul_(2)
    return y + x


def broadcast(x, b):
    y = (x - b[0]) / (b[1] + 3).sqrt()
    y = y * y.sigmoid()
    b.lerp_(x.detach().mean().expand_as(b), 0.1)
    return y


FUNCTIONS = [counted, copied, copied_by_nothing_to_do, cast, by_views, by_parts, statistics, compared, hidden]
FUNCTIONS += [with_gradient, broadcast]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"options": {"memory_budget": 0.3}}], ids=str)
def test_buffers(function, options):
    tensors = real(5, 1), real(6)
    torch.testing.assert_close(outcome(compiled(function, **options), *tensors), outcome(function, *tensors))


@pytest.mark.parametrize("dynamic", [False, True])
def test_tables(dynamic):
    """The backward repeats a gather only if the table does not change."""

    def function(z, table, index):
        loss = ((z - F.embedding(index, table.view(4, 3))) ** 2).sum()
        table.mul_(0)
        return loss

    tensors = real(5, 3), real(12), torch.tensor([0, 1, 1, 3, 2])
    torch.testing.assert_close(outcome(compiled(function, dynamic=dynamic), *tensors), outcome(function, *tensors))


def test_inputs_that_are_not_leaves():
    """PyTorch copies new values into such inputs after the graph has run."""

    def function(x, other):
        y = x.exp() * other.sigmoid()
        x.mul_(2)
        other.t().mul_(3)
        return y + x

    def gradients(function):
        torch.manual_seed(0)
        leaves = [real(4, 4).requires_grad_() for _ in range(2)]
        inputs = [each * 1 for each in leaves]
        function(*inputs).sum().backward()
        return [each.grad for each in leaves] + [each.detach() for each in inputs]

    torch.testing.assert_close(gradients(compiled(function)), gradients(function))


def test_inputs_that_share_memory():
    def function(x, one, other):
        y = x * one.sin() + x * other.cos()
        one.add_(1)
        return y

    def outcome_of_halves(function):
        torch.manual_seed(0)
        x, both = real(3, 4).requires_grad_(), real(6)
        function(x, both[:4], both[2:]).sum().backward()
        return x.grad, both

    torch.testing.assert_close(outcome_of_halves(compiled(function)), outcome_of_halves(function))


def test_checkpoints_stay():
    """A checkpoint's recomputation reads the buffer as it is then, as in eager PyTorch."""

    def function(x, b):
        y = checkpoint(lambda x: (x * b.sin()).exp(), x, use_reentrant=False)
        b.add_(1)
        return y

    tensors = real(5, 1), real(6)
    torch.testing.assert_close(outcome(compiled(function), *tensors)[1], outcome(function, *tensors)[1])


def test_the_backward_reads_it_itself():
    """Without a copy, an input that the backward needs must not change: an error, as in eager PyTorch."""

    def function(x, b):
        y = x @ b.view(4, 3).t()
        b.add_(1)
        return y

    for each in (function, compiled(function)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outcome(each, real(5, 3), real(12))


class Quantized(nn.Module):
    """The codebook of a VQ-VAE, which is updated towards the vectors that it quantizes."""

    def __init__(self, codes=8, width=4):
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("sums", self.codes.clone())
        self.register_buffer("counts", torch.ones(codes))

    def forward(self, z):
        nearest = torch.cdist(z, self.codes).argmin(-1)
        found = F.embedding(nearest, self.codes)
        if self.training:
            with torch.no_grad():
                chosen = F.one_hot(nearest, self.codes.shape[0]).to(z.dtype)
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(chosen.t() @ z, alpha=0.1)
                self.codes.data.copy_(self.sums / self.counts[:, None])
        return z + (found - z).detach(), (found - z).square().mean()


class BatchRenorm(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))

    def forward(self, x):
        deviation, mean = torch.std_mean(x, 0)
        if self.training:
            r = (deviation.detach() / self.deviation).clamp(1 / 3, 3)
            d = ((mean.detach() - self.mean) / self.deviation).clamp(-5, 5)
            x = (x - mean) / deviation * r + d
            self.mean += 0.1 * (mean.detach() - self.mean)
            self.deviation += 0.1 * (deviation.detach() - self.deviation)
        else:
            x = (x - self.mean) / self.deviation
        return self.weight * x


class RunningNorm(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.register_buffer("count", torch.ones(()))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        y = self.layer((x - self.mean) / (self.variance + 1e-5).sqrt()) * self.variance.sqrt()
        if self.training:
            self.count += 1
            self.mean.lerp_(x.detach().mean(0), 1 / self.count)
            self.variance.lerp_(x.detach().var(0), 1 / self.count)
        return y


class Observed(nn.Module):
    """A quantization observer, whose bounds scale the values before it updates the bounds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("least", -torch.ones(1))
        self.register_buffer("most", torch.ones(1))
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        scale = (self.most - self.least) / 255
        y = x + ((x / scale).round() * scale - x).detach() * self.most.sqrt()
        self.least.copy_(torch.minimum(self.least, x.detach().min()))
        self.most.copy_(torch.maximum(self.most, x.detach().max()))
        return y * scale


class Warmed(nn.Module):
    """A loss whose terms are weighted by the number of steps, which it counts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        y = self.layer(x)
        loss = y.square().mean() * (self.step / 10).clamp(max=1) + y.abs().mean() * 0.5**self.step
        self.step += 1
        return loss


class MovingTeacher(nn.Module):
    """A teacher whose weights follow the student's in the same graph."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        loss = (self.student(x) - self.teacher(x.detach()).tanh()).square().mean()
        with torch.no_grad():
            for mine, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                mine[:2].lerp_(other[:2], 0.5)
        return loss


MODELS = {
    "quantized": Quantized,
    "batch renorm": BatchRenorm,
    "running norm": RunningNorm,
    "observer": Observed,
    "step": Warmed,
    "teacher": MovingTeacher,
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "spectral norm of convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.utils.spectral_norm(nn.Conv2d(1, 3, 2)), nn.Flatten()
    ),
    "spectral parametrization": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
}


def training(model, call, difference):
    """Losses and gradients of three steps, and the model's state afterwards."""
    torch.manual_seed(0)
    found = []
    for _ in range(3):
        x, other = (torch.randn(16, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        results = [call(x), call(other)] if difference else [call(x)]
        values = [sum(each.sum() for each in y) if isinstance(y, tuple) else y.square().sum() for y in results]
        loss = values[0] - values[1] / 2 if difference else values[0]
        model.zero_grad()
        loss.backward()
        found += [loss.detach(), x.grad, *(each.grad.clone() for each in model.parameters() if each.requires_grad)]
        with torch.no_grad():
            for each in model.parameters():
                if each.grad is not None:
                    each -= 1e-2 * each.grad
    return found, model.state_dict()


@pytest.mark.parametrize("difference", [False, True], ids=["", "of two batches"])
@pytest.mark.parametrize("way", ["compile", "fuse"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, way, difference):
    model = MODELS[name]().double()
    twin = copy.deepcopy(model)
    expected = training(twin, twin, difference)
    if way == "fuse":
        fuse(model)
        found = training(model, model, difference)
    else:
        found = training(model, compiled(model), difference)
    torch.testing.assert_close(found, expected)
    model.eval(), twin.eval()
    x = real(3, 4)
    torch.testing.assert_close(model(x), twin(x))
