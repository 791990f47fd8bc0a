"""Plans of whole training steps that are only looked at, and what reports say of steps."""

import copy

import pytest
import torch
from marks import needs_aten
from test_training_optimizers import Numbers
from test_training_step import batches, eager, loss_of, net, quiet, same  # noqa: F401
from torch import optim
from torch.optim.swa_utils import AveragedModel

import torch_reformer
from torch_reformer.compiler.analysis.page import page
from torch_reformer.compiler.cli import Stopped, recorded, recorded_and_measured

pytestmark = needs_aten


def titles(reports):
    return [[line.title for line in report.lines] for report in reports]


@pytest.mark.parametrize(("make", "options"), [(optim.AdamW, {}), (optim.RMSprop, {"accumulate": 2})])
def test_recorded_plans_are_those_that_run(make, options):
    model, (batch,) = net(), batches(1)
    average = AveragedModel(model)
    step = torch_reformer.training_step(model, loss_of, make(model.parameters()), ema=average, **options)
    before = copy.deepcopy(model.state_dict())
    (graph,) = recorded(step, batch)
    assert [*model.state_dict()] == [*before] and not step.optimizer.state and not step.reports
    same([*model.state_dict().values()], [*before.values()], 0)
    step(*batch), step(*batch)
    assert titles(graph.passes) == titles(step.reports)
    assert len(graph.titles) == len(graph.passes) == options.get("accumulate", 1)
    parts = [line.part for line in graph.passes[-1].lines]
    assert {"forward", "backward", "update"} <= {*parts} and parts[0] == "forward" and parts[-1] == "update"
    text = page([graph], "a step", "sm_90")
    assert all(title.capitalize() in text for title in graph.titles) and "update, " in text
    (again,) = recorded(step, batch)  # with the state that is there now
    assert titles(again.passes) == titles(step.reports)


def test_measured_steps_run():
    one, other = net(), net()
    (batch,) = batches(1)
    step = torch_reformer.training_step(other, loss_of, optim.SGD(other.parameters(), 0.1))
    (graph,) = recorded_and_measured(step, batch)
    assert graph.passes[0].measured_us > 0
    assert not torch.equal(other.head.weight, one.head.weight)


def test_updates_that_are_in_no_plan():
    model, (batch,) = net(), batches(1)
    step = torch_reformer.training_step(model, loss_of, Numbers(model.parameters()))
    with pytest.warns(UserWarning, match=r"step\(\) fails"):
        (graph,) = recorded(step, batch)
    assert {line.part for line in graph.passes[0].lines} == {"forward", "backward"}


def test_losses_that_fail():
    model, ((x, y),) = net(), batches(1)
    step = torch_reformer.training_step(model, loss_of, optim.SGD(model.parameters(), 0.1))
    with pytest.raises(Stopped, match="the model fails"):
        recorded(step, (x[:, :2], y))
    step(x, y)
    with pytest.raises(ValueError, match="inside of its loss"):
        recorded(step, (x, y), autocast=torch.bfloat16)


def test_steps_are_printed():
    model, data = net(), batches(2)
    step = torch_reformer.training_step(model, loss_of, optim.SGD(model.parameters(), 0.1))
    step(*data[0])
    assert str(step).startswith("a training step of Net and SGD by one plan\n\n")
    assert "forward, conv: conv, moments" in str(step) and "update, aten::_fused_sgd_" in str(step)
