"""Masks of attention, as the compiler simplifies them (attention.py)."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.fx import GraphModule
from training_models import step

from torch_reformer.compiler.attention import simplify_masks
from torch_reformer.compiler.backend import reformer

PLACES = 6


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def arguments(function, *inputs) -> list[tuple[bool, bool]]:
    """Whether each call of attention that is left has a mask, and whether it is causal."""
    found = []

    def backend(module: GraphModule, _):
        simplify_masks(module)
        calls = module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        masks = [each.kwargs.get("attn_mask", (*each.args, None, None, None, None)[3]) for each in calls]
        causal = [bool(each.kwargs.get("is_causal")) for each in calls]
        found.extend(zip([each is not None for each in masks], causal, strict=True))
        return module.forward

    expected = function(*inputs)
    torch.testing.assert_close(torch.compile(function, backend=backend)(*inputs), expected)
    return found


def before(x, dtype=None):
    """Each place sees those that are not after it."""
    rows = torch.arange(PLACES, device=x.device)
    passes = (rows[None, :] <= rows[:, None])[None, None].expand(x.shape[0], -1, -1, -1)
    return passes if dtype is None else torch.zeros(passes.shape).masked_fill(~passes, -torch.inf).to(dtype)


def window(x):
    rows = torch.arange(PLACES)
    return (rows[None, :] - rows[:, None]).abs() < 2


def written(x):
    mask = torch.ones(PLACES, PLACES, dtype=torch.bool)
    mask[2:4].logical_and_(torch.arange(PLACES) > 1)
    return mask


def written_by_inputs(x):
    mask = torch.ones(PLACES, PLACES, dtype=torch.bool)
    row = mask[3]
    row.logical_and_(x[0, 0, :, 0] < 100)
    return mask


def random(x):
    return torch.rand(1, 1) < 2


MASKS = {
    "all pass": (lambda x: torch.ones((), dtype=torch.bool).expand(2, 1, PLACES, PLACES), (False, False)),
    "none is added": (lambda x: torch.zeros(PLACES, PLACES), (False, False)),
    "causal": (before, (False, True)),
    "causal, added": (lambda x: before(x, x.dtype), (False, True)),
    "a window": (window, (True, False)),
    "written": (written, (True, False)),
    "some added": (lambda x: torch.arange(PLACES * PLACES).view(PLACES, PLACES) / 30, (True, False)),
    "of the inputs": (lambda x: x[0, 0, :, :1] < 100, (True, False)),
    "written by inputs": (written_by_inputs, (True, False)),
    "random": (random, (True, False)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mask, expected = MASKS[name]

    def attention(x):
        return F.scaled_dot_product_attention(x, x * 2, x + 1, mask(x))

    assert arguments(attention, torch.randn(2, 3, PLACES, 8)) == [expected]


def test_random_numbers_stay():
    """A mask that nobody can know takes the numbers that it takes without a compiler."""

    def attention(x):
        return F.scaled_dot_product_attention(x, x, x, random(x)) + torch.rand(2, 3, PLACES, 8)

    x = torch.randn(2, 3, PLACES, 8)
    torch.manual_seed(0)
    expected = attention(x)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.compile(attention, backend=reformer)(x), expected)


class Layers(nn.Module):
    """Two layers with one mask, and one that has its own."""

    def __init__(self):
        super().__init__()
        self.query = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        mask = before(x)
        for i, query in enumerate(self.query):
            x = x + F.scaled_dot_product_attention(query(x), x, x, window(x) if i == 1 else mask, scale=0.3)
        return x.square().sum()


def test_one_mask_of_several():
    found = arguments(Layers(), torch.randn(2, 3, PLACES, 8))
    assert found == [(False, True), (True, False), (False, True)]


@needs_aten
def test_training():
    model, x = Layers().double(), torch.randn(2, 3, PLACES, 8, dtype=torch.float64)
    run = torch.compile(model, backend=reformer)
    torch.testing.assert_close(step(run, model, [x]), step(model, model, [x]))
