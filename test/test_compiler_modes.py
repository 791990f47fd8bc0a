"""Compiled graphs under a TorchDispatchMode, which sees the operators of plans. Results stay the same."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import torch_reformer
from torch_reformer import record_problems

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Seen(TorchDispatchMode):
    """Records the names of all operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 20)

    def forward(self, ids):
        q, k, v = self.qkv(self.embedding(ids)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 3, -1)
        scores = self.head(F.dropout((weights @ v).transpose(1, 2).flatten(2), 0.2))
        return F.cross_entropy(scores.flatten(0, 1), ids.flatten())


def convolutions(channels_last=False):
    layers = (
        nn.Conv2d(4, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 1),
    )
    model = nn.Sequential(*layers, nn.GELU(), nn.Flatten(1), nn.Linear(8 * 16, 5))
    return model.to(memory_format=torch.channels_last) if channels_last else model


MODELS = {
    "convolutions": (convolutions, lambda: torch.randn(2, 4, 8, 8)),
    "channels_last": (
        lambda: convolutions(True),
        lambda: torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last),
    ),
    "attention": (Attention, lambda: torch.randint(20, (3, 7))),
}


def step(model, *inputs):
    model.zero_grad()
    torch.manual_seed(1)
    result = model(*inputs)
    result.square().sum().backward()
    return [result.detach(), *(each.grad for each in model.parameters())]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("make, given", MODELS.values(), ids=MODELS)
def test_results_are_the_same(make, given, autocast):
    model, x = make(), given()
    compiled = torch.compile(model, backend="reformer", fullgraph=True)
    with torch.autocast("cpu", enabled=autocast):
        expected = step(compiled, x)
        buffers = [each.clone() for each in model.buffers()]
        model.load_state_dict(dict(model.state_dict()) | dict(make().named_buffers()))
        with Seen() as seen:
            found = step(compiled, x)
    assert any(name.startswith("reformer::") for name in seen.names)
    assert all(map(torch.equal, found, expected)) and all(map(torch.equal, model.buffers(), buffers))
    assert [each.stride() for each in found] == [each.stride() for each in expected]


@pytest.mark.parametrize("compiled_before", [False, True])
def test_problems_of_plans(compiled_before):
    model, x = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3)), torch.randn(2, 4, 8, 8)
    compiled = torch.compile(model, backend="reformer")
    if compiled_before:
        step(compiled, x)
    with record_problems() as problems:
        step(compiled, x)
    found = {(problem.c, problem.k, problem.direction): calls for (problem, _), calls in problems.items()}
    assert found == {(4, 8, "F"): 1, (8, 6, "F"): 1, (8, 6, "B"): 1, (8, 6, "W"): 1, (4, 8, "W"): 1}


def test_problems_of_a_fused_model():
    model, x = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(2, 4, 8, 8)
    torch_reformer.fuse(model)
    with record_problems() as problems:
        step(model, x)
    assert [each.direction for each, _ in problems] == ["F", "W"]


def test_flops_of_a_backward_plan():
    """The counter keeps Dynamo from compiling, but a backward that was compiled before runs as a plan."""
    model, x = nn.Conv2d(4, 8, 3), torch.randn(2, 4, 8, 8)
    loss = torch.compile(model, backend="reformer")(x).square().sum()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert counter.get_total_flops() == 2 * (2 * 8 * 6 * 6) * (4 * 3 * 3)


def test_results_that_nothing_reads():
    """A plan knows the strides of an operator's results up to the last that is read."""
    x, seen = torch.randn(5), Seen()
    compiled = torch.compile(lambda x: x.sort()[0] * 2, backend="reformer")
    expected = compiled(x)
    with seen:
        assert torch.equal(compiled(x), expected)
    assert "aten::sort" in seen.names
