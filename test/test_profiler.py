"""Ranges in PyTorch's profiler: a plan, and inside it each fused kernel, named by its operations."""

import pytest
import torch
from marks import needs_aten
from torch.profiler import profile

import torch_reformer
from torch_reformer import program as ep

pytestmark = needs_aten


def ranges(run) -> list[str]:
    """Names of the package's ranges, in order of their beginning."""
    with profile() as profiler:
        run()
    return [event.name for event in profiler.events() if event.name.startswith("reformer::")]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def test_compiled_training_step():
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.ReLU())
    compiled = torch.compile(model, backend="reformer")
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    compiled(x).sum().backward()
    forward = ranges(lambda: compiled(x))
    assert forward == ["reformer::plan", "reformer::conv2d: add, relu, le"]  # `le` is relu's mask for the backward
    result = compiled(x).sum()
    plan, *steps = ranges(result.backward)
    assert plan == "reformer::plan" and steps[-1] == "reformer::conv2d_grads: input, weight"
    assert any(step.startswith("reformer::stitch: ") and step.endswith("sum of channels") for step in steps)


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
