"""Rehearsal of a plan's steps before it runs, and tensors that a plan refuses."""

import pytest
import torch
import training_models
from compiled_steps import executables
from marks import needs_aten
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_reformer.compiler import backend
from torch_reformer.compiler.runtime import executable
from torch_reformer.compiler.runtime.precompile import rehearse

pytestmark = needs_aten


@pytest.mark.parametrize("name", ["resnet", "efficientnet", "unet", "gpt"])
def test_each_step_can_be_rehearsed(name, monkeypatch):
    """Each step can run by itself on tensors of its types, by which GPU kernels are compiled before the plan runs."""
    torch._dynamo.reset()
    run = []
    monkeypatch.setattr(executable, "precompile", lambda lowered: run.append((lowered, rehearse(lowered))))
    model, inputs = training_models.make(name)
    torch.compile(model, backend=backend.reformer)(*inputs).backward()
    steps = [step for lowered, _ in run for step in lowered.plan.steps]
    assert len(run) == 2 and sum(step.kind in ("conv2d", "stitch", "conv2d_grads") for step in steps) > 1


def test_a_plan_waits_for_its_kernels(monkeypatch):
    """Both graphs are planned before the first has to wait, and each waits once."""
    torch._dynamo.reset()
    events = []

    class Kernels:
        def result(self):
            events.append("wait")

    def begin(emitted):
        events.append("begin")
        return Kernels()

    monkeypatch.setattr(executable, "precompile", begin)
    model, x = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend=backend.reformer), torch.randn(2, 3)
    for _ in range(2):
        model(x).sum().backward()
    assert events == ["begin", "begin", "wait", "wait"]


def test_fake_tensors(monkeypatch):
    """Fake tensors have no memory to compute with."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    forward, _ = executables(model, x, monkeypatch=monkeypatch)
    with FakeTensorMode() as mode, pytest.raises(ValueError, match="a plan takes plain tensors"):
        forward([mode.from_tensor(each) for each in (model.weight, model.bias, x)])
