"""Simplification of attention masks (pre_grad/attention_masks.py)."""

import operator

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.fx import GraphModule
from training_models import step

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.pre_grad.attention_masks import simplify_masks

PLACES = 6


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def arguments(function, *inputs) -> list[tuple[bool, bool]]:
    """For each call of attention in the simplified graph: has it a mask, and is it causal?"""
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
    """Causal mask: each place attends to itself and to those before it."""
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
    "causal, of two": (lambda x: before(x) & torch.ones((), dtype=torch.bool), (False, True)),
    "causal, by another operator": (lambda x: before(x) | torch.zeros((), dtype=torch.bool), (False, True)),
    "a window": (window, (True, False)),
    "written": (written, (True, False)),
    "some added": (lambda x: torch.arange(PLACES * PLACES).view(PLACES, PLACES) / 30, (True, False)),
    "of the inputs": (lambda x: x[0, 0, :, :1] < 100, (True, False)),
    "written by inputs": (written_by_inputs, (True, False)),
    "random": (random, (True, False)),
}


def everything_but_one(x, write):
    mask = torch.zeros(PLACES, PLACES, dtype=x.dtype)
    write(mask, x[0, 0, :, 0])
    return mask


# Writes that are hard to recognise in Dynamo's graph.
WRITES = {
    "an attribute": lambda mask, x: mask.T[2].fill_(-5.0),
    "an attribute, by inputs": lambda mask, x: mask.mT[2].copy_(x),
    "an item of an attribute": lambda mask, x: mask.mT.__setitem__(2, -5.0),
    "an operator": lambda mask, x: operator.ipow(mask[:, 2], x.abs() * 0),
    "a method of Python's": lambda mask, x: mask[2].__iadd__(x),
    "an operator of ATen's": lambda mask, x: torch.ops.aten.copy_.default(mask[2], x),
}


@pytest.mark.parametrize("name", WRITES)
def test_masks_that_are_written_to(name):
    def attention(x):
        return F.scaled_dot_product_attention(x, x * 2, x + 1, everything_but_one(x, WRITES[name]))

    assert arguments(attention, torch.randn(2, 3, PLACES, 8)) == [(True, False)]


def test_a_mask_that_is_written_to_later():
    def attention(x):
        mask = torch.ones(PLACES, PLACES, dtype=torch.bool).tril()
        found = F.scaled_dot_product_attention(x, x * 2, x + 1, mask)
        mask[:] = True
        return found + F.scaled_dot_product_attention(x, x * 2, x + 1, mask)

    arguments(attention, torch.randn(2, 3, PLACES, 8))


def test_what_a_mask_is_made_of_stays():
    def attention(x):
        base = torch.full((PLACES, PLACES), -torch.inf, dtype=x.dtype)
        mask = base.triu_(1)
        return F.scaled_dot_product_attention(x, x * 2, x + 1, mask), base.clone()

    arguments(attention, torch.randn(2, 3, PLACES, 8))


def test_one_row_of_a_mask_for_all_queries():
    """Every query attends to the first key only, which is not causal."""

    def attention(x):
        return F.scaled_dot_product_attention(x, x * 2, x + 1, (torch.arange(PLACES) < 1)[None])

    assert arguments(attention, torch.randn(2, 3, PLACES, 8)) == [(True, False)]


def test_devices_by_their_names():
    x = torch.randn(1, 2, PLACES, 8, device="meta")

    def attention(x):
        return F.scaled_dot_product_attention(x, x, x, torch.ones(PLACES, PLACES, device="meta").tril().bool())

    found = []

    def backend(module, _):
        simplify_masks(module)
        (call,) = module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        found.append((call.kwargs["attn_mask"], call.kwargs["is_causal"]))
        return module.forward

    torch.compile(attention, backend=backend)(x)
    assert found == [(None, True)]


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mask, expected = MASKS[name]

    def attention(x):
        return F.scaled_dot_product_attention(x, x * 2, x + 1, mask(x))

    assert arguments(attention, torch.randn(2, 3, PLACES, 8)) == [expected]


def test_random_numbers_stay():
    """A random mask draws the same numbers as without a compiler."""

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


def test_beside_batched_tensors():
    """Tensors within `torch.vmap` have no memory of their own."""

    def function(q, given):
        doubled = torch.vmap(lambda x: x.clone().mul_(2))(q)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=given[0].expand(PLACES, PLACES)) * doubled.mean()

    assert arguments(function, torch.randn(1, 2, PLACES, 4), torch.ones(1, PLACES).bool()) == [(True, False)]
