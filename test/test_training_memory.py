"""Stages of joint graphs in whole training steps: what is recomputed, and losses in chunks."""

import copy

import pytest
import torch
import torch.nn.functional as F
from plan_memory import peak_bytes
from test_training_step import batches, eager, net, quiet, same  # noqa: F401
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_reformer
from torch_reformer.compiler import backend
from torch_reformer.compiler.joint_graph import chunk_count, chunk_losses


@pytest.fixture
def plans(monkeypatch):
    """Plans of graphs, as they are made."""
    made, compile_graph = [], backend.compile_graph

    def compiled(*args):
        made.append(compile_graph(*args))
        return made[-1]

    monkeypatch.setattr(backend, "compile_graph", compiled)
    return made


def layers(count=6, width=32):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(count)]
    return nn.Sequential(*blocks, nn.Linear(width, 5)).double()


def data(count=4, rows=128, width=32):
    torch.manual_seed(1)
    return [(torch.randn(rows, width, dtype=torch.float64), torch.randint(5, (rows,))) for _ in range(count)]


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def checkpointed(model, x, y):
    for block in model[:-1]:
        x = checkpoint(block, x, use_reentrant=False)
    return F.cross_entropy(model[-1](x), y)


def run(model, loss, plans, make=torch.optim.AdamW, **options):
    """Check the losses and parameters of a step, which is one plan. Returns the most bytes of its tensors."""
    one, other = model, copy.deepcopy(model)
    expected = eager(one, make(one.parameters(), 1e-2), loss, data())
    step = torch_reformer.training_step(other, loss, make(other.parameters(), 1e-2), **options)
    same([step(*batch) for batch in data()], expected)
    same([*other.parameters()], [*one.parameters()])
    assert step.reason is None
    return peak_bytes(plans[-1])


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.RMSprop])
def test_memory_budget(plans, make):
    whole, half = (run(layers(), loss_of, plans, make, memory_budget=budget) for budget in (1, 0.5))
    assert half < 0.8 * whole


def test_checkpoints(plans):
    assert run(layers(), checkpointed, plans) < 0.7 * run(layers(), loss_of, plans)


def test_dropout_is_not_drawn_again(plans):
    """The backward of a step that recomputes has the forward's random numbers."""

    def loss(model, x, y):
        return F.cross_entropy(model(F.dropout(x * model[0][0].weight.sum(), 0.5)), y)

    losses = []
    for budget in (1, 0):
        torch._dynamo.reset()
        model = layers()
        step = torch_reformer.training_step(model, loss, torch.optim.SGD(model.parameters(), 0.1), memory_budget=budget)
        torch.manual_seed(3)
        losses.append(torch.stack([step(*batch) for batch in data()]))
        assert step.reason is None
    same(*losses)


def test_buffers_change_once():
    """Batch norms count a batch once, though a backward computes them again."""
    one, other = net(), net()

    def loss(model, x, y):
        return F.cross_entropy(model(x), y)

    expected = eager(one, torch.optim.SGD(one.parameters(), 0.1), loss, batches(4))
    step = torch_reformer.training_step(other, loss, torch.optim.SGD(other.parameters(), 0.1), memory_budget=0)
    same([step(*batch) for batch in batches(4)], expected)
    assert step.reason is None
    same([*other.state_dict().values()], [*one.state_dict().values()])


def test_other_sizes_within_a_budget():
    one, other = layers(), layers()
    batches = [batch for rows in (8, 6, 10, 12) for batch in data(2, rows)]
    expected = eager(one, torch.optim.SGD(one.parameters(), 0.1), loss_of, batches)
    step = torch_reformer.training_step(other, loss_of, torch.optim.SGD(other.parameters(), 0.1), memory_budget=0)
    same([step(*batch) for batch in batches], expected)
    assert step.reason is None


def test_losses_in_chunks(plans, monkeypatch):
    monkeypatch.setattr(chunk_count, "LEAST_ROWS", 8)
    monkeypatch.setattr(chunk_count, "_most_in_time", lambda *_: 4)
    monkeypatch.setattr(chunk_count, "_LEAST_SAVED", 0)
    found, chunks = [], chunk_losses._Chunks.run
    monkeypatch.setattr(
        chunk_losses._Chunks, "run", lambda self, bounds: (found.append(len(bounds)), chunks(self, bounds))
    )
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 512)).double()
    run(model, loss_of, plans)
    assert found == [4]
