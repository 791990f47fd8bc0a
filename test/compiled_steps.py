"""Executables of a training step, with every graph verified after each pass, and the kinds of their plans' steps."""

import torch

from torch_reformer.compiler import backend, pipeline
from torch_reformer.compiler.ir.verify import verify
from torch_reformer.compiler.lowering import from_fx
from torch_reformer.compiler.passes import PASSES
from torch_reformer.compiler.runtime.executable import Executable


def executables(model, *inputs, monkeypatch) -> list[Executable]:
    """Executables of a training step, forward first; every graph is verified after each pass."""
    found = []

    def executable(module, report):
        graph, _ = from_fx.lower_fx(module)
        for change in PASSES:
            verify(graph)
            change(graph)
        verify(graph)
        found.append(pipeline.plan(module, reports=report is not None))
        found[-1].report_to(report)
        return found[-1]

    torch._dynamo.reset()
    monkeypatch.setattr(backend, "compile_graph", executable)
    torch.compile(model, backend=backend.reformer)(*inputs).square().sum().backward()
    return found


def kinds(executable: Executable) -> list[str]:
    """Kinds of a plan's steps, without views."""
    steps = [step.call.name if step.call else step.kind for step in executable.plan.steps]
    return [kind for kind in steps if kind not in ("view", "aten::empty_strided")]
