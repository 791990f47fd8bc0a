"""Reports of a plan's steps, and the marks between steps by which they are measured."""

import dataclasses
import functools
import itertools
import os
import subprocess
import sys

import torch
from expecttest import assert_expected_inline
from marks import needs_aten
from torch import nn

from torch_reformer.compiler import backend, pipeline
from torch_reformer.compiler.runtime import measure
from torch_reformer.runtime import plan as plans

pytestmark = needs_aten


def test_report():
    reports = []
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    x = torch.randn(2, 4, 34, 34, requires_grad=True)
    torch.compile(model, backend=backend.reformer, options={"report": reports.append})(x).sum().backward()
    forward, backward = reports
    assert_expected_inline(
        str(dataclasses.replace(forward, planned=None)),  # which is there if SciPy is
        """\
   MB read   written
      0.04      0.07  conv: conv, moments
      0.07      0.07  stitch: sub, mul, mul, add, relu, rsqrt, add, add
      0.07      0.05  aten::max_pool2d_with_indices
      0.00      0.00  aten::_foreach_add_.Scalar
4 kernels and calls move 0.3 MB; one by one 21 kernels and calls move 0.9 MB""",
    )
    assert [line.kind for line in backward.lines].count("stitch") == 2
    image = 2 * 8 * 32 * 32 * 4
    convolution = forward.lines[0]
    assert convolution.written == image + 2 * 8 * 4 and convolution.read == x.numel() * 4 + 8 * 4 * 9 * 4
    assert 2 * forward.bytes < sum(line.read + line.written for line in forward.unfused)


def test_marks_are_between_groups():
    """Marks are not behind each view within a group: their time would be added to the group's."""
    tensors = [torch.randn(8, 96), *(torch.randn(96, 96) for _ in range(10))]

    def function(x, *weights):
        with torch.autocast("cpu", torch.bfloat16):
            return functools.reduce(nn.functional.linear, weights, x)

    found = []

    def compiled(module, _):
        executable = pipeline.plan(module)

        def call(*args):
            times, results = measure.measure(executable, list(args))
            found.append((executable, times))
            return results

        return call

    with torch.no_grad():
        result = backend.compile_graphs(function, compiled)(*tensors)
        torch.testing.assert_close(result, function(*tensors))
    ((executable, times),) = found
    assert times.keys() == executable.emitted.steps.keys() and min(times.values()) > 0
    places = {place for each in executable.emitted.steps.values() for place in (each.start, each.stop)}
    plan = plans.between_steps(executable.plan, torch.ops.reformer._mark.default, places)
    names = [step.call.name if step.call else step.kind for step in plan.steps]
    assert names.count("reformer::_mark") == len(times) + 1
    assert names[0] == names[-1] == "reformer::_mark" and names.count("view") >= 10
    (casts,) = (place for place, name in enumerate(names) if name == "reformer::_cast_all")
    assert names[casts - 1] == "view" and names[casts + 1] == "reformer::_mark"


def test_breaks():
    """The reports of a graph that is broken off say where, why, and what passes through memory."""

    def function(x):
        x = x.sin() * 2
        torch._dynamo.graph_break()
        return x.cos().sum()

    reports = []
    torch._dynamo.reset()
    x = torch.randn(500, 1000, requires_grad=True)
    torch.compile(function, backend="reformer", options={"report": reports.append})(x).backward()
    assert [bool(report.broken) for report in reports] == [True, True, False, False]  # forward and backward
    (said,) = {report.broken for report in reports[:2]}
    assert "test_compiler_reports.py" in said and "graph_break" in said
    assert said.endswith("; 1 tensor of 2.00 MB must be stored for what follows")
    assert str(reports[0]).endswith(f"broken off: {said}")


def test_reports_are_artifacts_of_pytorchs_trace(tmp_path):
    """tlparse shows them. Each is traced once, and the caller's function gets it, too."""
    code = """
import torch
reports = []
model = torch.compile(torch.nn.Linear(4, 4), backend="reformer", options={"report": reports.append})
model(torch.randn(2, 4)).sum().backward()
print(*reports, sep="\\n\\n")
"""
    settings = {"TORCH_TRACE": str(tmp_path), "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True, check=True, timeout=120
    )
    (log,) = tmp_path.iterdir()
    lines = log.read_text().splitlines()
    places = [i for i, line in enumerate(lines) if '"reformer_report"' in line]
    bodies = []
    for place in places:
        body = itertools.takewhile(lambda line: line.startswith("\t"), lines[place + 1 :])
        bodies.append("\n".join(line[1:] for line in body))
    assert len(bodies) == 2 and "\n\n".join(bodies) == done.stdout.strip("\n")
