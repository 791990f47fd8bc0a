"""Losses and parameters of 20 whole training steps against eager ones, with models of zoo.py."""

import copy

import pytest
import torch
from marks import needs_aten, slow
from test_training_step import eager, quiet, same  # noqa: F401
from zoo import EACH_NIGHT, HEAVY, QUICK, Hardsigmoid, made, replaced

import torch_reformer

pytestmark = needs_aten

MODELS = (
    *("t5", "vit", "gpt2", "distilbert", "bert", "mixer", "beit", "convnext", "poolformer", "shufflenet"),
    *("resnext", "mobilenet", "regnet", "nfnet", "xcit", "pvt", "repvgg", "efficientnet", "swin", "coatnet"),
)
# Learning rates are small: with larger ones a change of one rounding grows to 1e-1 in 20 steps of eager ShuffleNet.
MAKE = (
    lambda params: torch.optim.SGD(params, 1e-5, momentum=0.9, nesterov=True),
    # eps is larger than gradients that are zero but for rounding.
    lambda params: torch.optim.RMSprop(params, 1e-6, eps=1e-3),
)


def case_of(name: str):
    case = made((QUICK | HEAVY)[name])
    (model,) = case.models
    model = replaced(model, "Hardsigmoid", lambda _: Hardsigmoid()).double()
    return model, [tensor.double() if tensor.is_floating_point() else tensor for tensor in case.inputs]


def loss_of(model, *inputs):
    return model(*inputs)


@pytest.mark.parametrize("name", slow(*MODELS, each_night=EACH_NIGHT))
def test_20_steps(name):
    one, inputs = case_of(name)
    other = copy.deepcopy(one)
    make = MAKE[MODELS.index(name) % 2]
    step = torch_reformer.training_step(other, loss_of, make(other.parameters()))
    expected = eager(one, make(one.parameters()), loss_of, [inputs] * 20)
    same([step(*inputs) for _ in range(20)], expected)
    assert step.reason is None and len(step.reports) == 1
    same([*other.state_dict().values()], [*one.state_dict().values()])
