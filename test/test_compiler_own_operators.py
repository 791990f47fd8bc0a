"""This package's operators and converted models, as the compiler takes them."""

import copy

import pytest
import torch
import training_models
from marks import needs_aten

from torch_reformer import nn as nn_of_ours
from torch_reformer.compiler import backend
from torch_reformer.compiler.cli import planned

pytestmark = needs_aten


def reports_of(model, inputs):
    found = []
    torch._dynamo.reset()
    torch.compile(model, backend=backend.reformer, options={"report": found.append})(*inputs).backward()
    return found


def types_cast(model):
    """Its convolutions under autocast."""

    def run(*inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(*inputs)

    return run


@pytest.mark.parametrize(
    "name, autocast", [pytest.param("resnet", False, marks=pytest.mark.slow), ("unet", False), ("convnext", True)]
)
def test_converted_models_have_the_same_plans(name, autocast):
    """convert() has modules call this package's convolution, which the compiler takes for PyTorch's."""
    model, inputs = training_models.make(name)
    converted = copy.deepcopy(model)
    assert nn_of_ours.convert(converted).converted
    expected, found = (reports_of(types_cast(each) if autocast else each, inputs) for each in (model, converted))
    assert len(expected) == 2 and found == expected
    if not autocast:
        assert planned(converted, tuple(inputs)) == planned(model, tuple(inputs))


@pytest.mark.parametrize(
    "geometry",
    [(), ((2, 1),), ((1, 2), (1, 0), (2, 1)), ((1, 1), (1, 1), (1, 1), 2)],
    ids=["defaults", "stride", "dilation", "groups"],
)
def test_operators_of_this_package(geometry):
    """Called by themselves they become kernels of a plan, too, and so do their own gradients."""
    ops, groups = torch.ops.reformer, geometry[3] if len(geometry) > 3 else 1
    x, w = torch.randn(2, 4, 9, 8).double(), torch.randn(6, 4 // groups, 3, 2).double()
    y = torch.randn_like(ops.conv2d(x, w, None, *geometry))

    def function(x, w, y):
        of_input = ops.conv2d_input_grad(x.shape, w, y, *geometry).square()
        named = dict(zip(("stride", "padding", "dilation", "groups"), geometry, strict=False))
        of_weight = ops.conv2d_weight_grad(w.shape, x, y, **named).square()
        return of_input, of_weight, ops.conv2d_bias_grad(y), ops.conv2d(x, w, **named).sin()

    results, reports = [], []
    torch._dynamo.reset()
    for run in (torch.compile(function, backend=backend.reformer, options={"report": reports.append}), function):
        inputs = [each.clone().requires_grad_() for each in (x, w, y)]
        found = run(*inputs)
        sum(each.sum() for each in found).backward()
        results.append([[each.detach() for each in found], [each.grad for each in inputs]])
    torch.testing.assert_close(*results)
    kinds = [line.kind for report in reports for line in report.lines]
    assert "conv" in kinds and "conv_grads" in kinds and not [kind for kind in kinds if kind.startswith("reformer")]
