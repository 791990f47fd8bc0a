"""Ranges in PyTorch's profiler: a plan, and inside it each fused kernel, named as in the report."""

import pickle

import pytest
import torch
import training_models
from marks import needs_aten
from torch.profiler import profile

import torch_reformer
from torch_reformer import program as ep
from torch_reformer.compiler.fusion.titles import title

pytestmark = needs_aten


def ranges(run) -> list[str]:
    """Names of the package's ranges, in order of their beginning."""
    with profile() as profiler:
        run()
    return [event.name for event in profiler.events() if event.name.startswith("reformer::")]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def kernels(report) -> list[str]:
    """Titles of the kernels that are not PyTorch's, as ranges have them: without the sizes of products."""
    kinds = "conv", "stitch", "conv_grads"
    return [f"reformer::{title(line.kind, line.operations)}" for line in report.lines if line.kind in kinds]


def test_compiled_training_step():
    """Ranges of a residual network are named as the lines of its reports, in their order."""
    model, (images, classes) = training_models.make("resnet")
    reports = []
    compiled = torch.compile(model, backend="reformer", options={"report": reports.append})
    compiled(images, classes).sum().backward()
    loss = None

    def forward():
        nonlocal loss
        loss = compiled(images, classes).sum()

    for report, run in zip(reports, (forward, lambda: loss.backward()), strict=True):
        plan, *steps = ranges(run)
        assert plan == "reformer::plan" and len(kernels(report)) > 10
        assert [step for step in steps if not step.startswith("reformer::_")] == kernels(report)


def test_titles_are_cached():
    """A plan that another process made keeps its titles: they are a part of its steps."""
    steps = torch_reformer.runtime.plan.Plan(1)
    steps.give(*steps.stitch(ep.Program(ep.store(ep.relu(ep.acc()))).code, 0, []))
    steps.name(0, "stitch: mine")
    loaded = pickle.loads(pickle.dumps(steps))
    assert "reformer::stitch: mine" in ranges(lambda: torch_reformer.runtime.plan.run(loaded, [torch.ones(1, 1, 2, 2)]))


def test_operators_of_pytorch_have_their_own_ranges():
    compiled = torch.compile(lambda a, b: (a @ b).sin(), backend="reformer")
    compiled(a := torch.randn(5, 5), a)
    with profile() as profiler:
        compiled(a, a)
    names = [event.name for event in profiler.events()]
    assert names.count("aten::mm") == 1 and names.count("reformer::plan") == 1


@pytest.mark.parametrize(
    "program, name",
    [
        (ep.Program(ep.store(ep.acc())), "copy"),
        (ep.Program(ep.store(ep.relu(ep.acc() * 2 + 1) * 3)), "mul, add, relu"),
        (ep.Program(ep.sum(ep.exp(ep.acc()), "row"), ep.max(ep.acc(), "all")), "exp, sum of rows, max of all"),
    ],
    ids=["copy", "repeated", "reductions"],
)
def test_fused_kernels_outside_of_graphs(program, name):
    x = torch.randn(2, 3, 4, 5)
    names = ranges(lambda: torch_reformer.stitch(x, program))
    assert names[-1] == f"reformer::stitch: {name}"


def test_long_programs_are_cut():
    value = ep.acc()
    for operation in (ep.exp, ep.log1p, ep.sqrt, ep.tanh, ep.sigmoid, ep.erf, ep.relu, ep.rsqrt, ep.log, ep.normal_cdf):
        value = operation(value)
    names = ranges(lambda: torch_reformer.stitch(torch.rand(2, 3, 4, 5), ep.Program(ep.store(value))))
    assert names[-1] == "reformer::stitch: exp, log1p, sqrt, tanh, sigmoid, erf, relu, rsqrt, and 2 more"
