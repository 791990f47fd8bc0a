"""Fusion by integer linear programming: results, costs against greedy fusion's, and equal plans in every process."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten, needs_solver

from torch_reformer.compiler import pipeline
from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.cli import planned
from torch_reformer.compiler.fusion.ilp import apply, candidates, milp, model, planner
from torch_reformer.compiler.fusion.ilp.planner import IlpSummary

pytestmark = [needs_aten, needs_solver]


def reports(function, *inputs):
    torch._dynamo.reset()
    found = []
    result = torch.compile(function, backend=reformer, options={"report": found.append})(*inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-4, atol=1e-4)
    return found


def shared_later(x, y, z):
    """Two column sums, the second of values that depend on the first, and a result that depends on both."""
    a = (x + y).exp()
    b = a * (a.sum(0) * 1e-3) + z
    return b.sum(0), (b.tanh() * y).sum(0), a.sigmoid() + b


def random_function(seed: int):
    """Random element-wise operations and sums of earlier values, with several results."""
    generator = torch.Generator().manual_seed(seed)

    def pick(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    steps = [(pick(6), pick(100), pick(100)) for _ in range(14)]

    def function(*inputs):
        found, vectors = list(inputs), [inputs[0].sum(0)]
        for kind, one, other in steps:
            x, y, v = found[one % len(found)], found[other % len(found)], vectors[other % len(vectors)]
            if kind == 0:
                vectors.append(x.sum(0) * 1e-2)
            elif kind == 1:
                found.append(x * torch.rsqrt(1 + x.square().mean(1, keepdim=True)))
            else:
                found.append([x + y, (x * y).tanh(), x.sigmoid() - v, torch.where(x > y, x, v)][kind - 2])
        return found[-1], found[len(found) // 2], vectors[-1]

    return function


@pytest.mark.parametrize("most", [0, 10**9])
def test_large_models_are_not_searched(most, monkeypatch):
    """Their relaxation is solved; the greedy groups stay."""
    found, solved = [], model.FusionModel.solved
    monkeypatch.setattr(model, "_MOST_ENTRIES", most)
    monkeypatch.setattr(model.FusionModel, "solved", lambda *given: found.append(len(given)) or solved(*given))
    x = torch.randn(2, 5, 6, 3, 4).permute(0, 3, 4, 1, 2)
    reports(lambda x: (torch.tanh(x) * 2).var((2, 3, 4)), x)
    assert (2 in found) == (most > 0) and 1 in found


def replace_all(monkeypatch):
    """Replace the groups of all components, even at equal cost, and take the resulting plan."""
    monkeypatch.setattr(model.Solution, "is_better", lambda self, other: self.cost <= other.cost)
    costs = itertools.count()  # the ILP fusion's cost is asked for first, and is lower
    monkeypatch.setattr(pipeline, "cost_of", lambda *_: next(costs))


@pytest.mark.parametrize("seed", range(8))
def test_results_and_costs(seed):
    inputs = [torch.randn(300, 200) for _ in range(3)]
    for report in reports(random_function(seed), *inputs):
        found = report.planned
        assert found.bound_us <= found.plan_us + 1e-6 and found.plan_us <= found.greedy_us
        assert not found.refused


@pytest.mark.parametrize("replaced", [False, True])
def test_a_vector_that_others_recompute(replaced, monkeypatch):
    """In the second derivative of a batch norm, one group stores variance + eps, and groups that it needs recompute it.

    Regression test: no candidate could store it, and no group of the plan made it."""
    if replaced:
        replace_all(monkeypatch)
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4))
    parameters = dict(model.eval().named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    for report in reports(torch.func.grad(loss), parameters, torch.randn(4, 3, 12, 12)):
        assert not report.planned.refused
        assert report.planned.bound_us > 0.9 * report.planned.greedy_us


@pytest.mark.parametrize("seed", range(4))
def test_zeros_and_look_ups(seed, monkeypatch):
    """Replaced groups pad rows with zeros and gather rows, as greedy ones do."""
    replace_all(monkeypatch)
    changed, replace = [], planner.replace_groups

    def recorded(fusion, *args):
        replace(fusion, *args)
        changed.append(any(group.copies for group in fusion.groups.values()))

    monkeypatch.setattr(planner, "replace_groups", recorded)
    others = random_function(seed)

    def function(x, y, z, table, index):
        rows = F.embedding(index, table)
        made = others(x, y, z + rows)
        return F.pad(made[0] * made[2] - rows, (0, 3)), F.pad(made[1].sigmoid(), (0, 5)), *made

    inputs = [*(torch.randn(300, 200) for _ in range(3)), torch.randn(50, 200), torch.randint(50, (300,))]
    (report,) = reports(function, *inputs)
    names = [name for line in report.lines if line.kind == "stitch" for name in line.operations]
    assert any(changed) and "pad[3]" in names and "pad[5]" in names
    assert not any("embedding" in line.kind for line in report.lines)


def test_better_than_greedy(monkeypatch):
    """Greedy fusion of these operations makes kernels that cost more."""
    function, inputs = random_function(10), [torch.randn(300, 200) for _ in range(3)]
    (found,) = planned(function, tuple(inputs), "sm_90")
    with monkeypatch.context() as patch:
        patch.setattr(milp, "name", lambda: None)
        (greedy,) = planned(function, tuple(inputs), "sm_90")
    assert greedy.planned is None
    assert found.us < greedy.us
    reports(function, *inputs)


def test_without_a_solver(monkeypatch):
    monkeypatch.setattr(milp, "name", lambda: None)
    (report,) = reports(shared_later, *(torch.randn(300, 200) for _ in range(3)))
    assert report.planned is None


def test_a_graph_has_so_many_candidates(monkeypatch):
    monkeypatch.setattr(candidates, "MOST", 0)
    (report,) = planned(shared_later, tuple(torch.randn(300, 200) for _ in range(3)), "sm_90")
    assert report.planned.plan_us == report.planned.greedy_us and report.planned.bound_us == 0


def without_a_group(fusion, *args):
    before = set(fusion.groups)
    apply.replace_groups(fusion, *args)
    del fusion.groups[max(fusion.groups.keys() - before)]


def cyclic(fusion, traced):
    raise ValueError("groups need each other")


@pytest.mark.parametrize(
    ("module", "name", "change", "reason"),
    [
        (planner, "replace_groups", without_a_group, "no group makes %"),
        (planner, "verify", cyclic, "groups need each other"),
        (milp.Model, "allows", lambda *_: False, "the greedy groups violate a constraint of their model"),
    ],
)
def test_what_is_no_plan_is_refused(module, name, change, reason, monkeypatch):
    """The greedy groups are kept, and the report gives the reason."""
    replace_all(monkeypatch)
    monkeypatch.setattr(module, name, change)
    (report,) = reports(shared_later, *(torch.randn(300, 200) for _ in range(3)))
    assert f"greedy, as {reason}" in str(report) and report.planned.plan_us == report.planned.greedy_us


def test_repeated_layers_are_planned_once():
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(12)))
    for report in planned(layers, (torch.randn(512, 64),), "sm_90"):
        assert report.planned.distinct < report.planned.components / 2


def test_the_report_tells():
    (report,) = reports(shared_later, *(torch.randn(300, 200) for _ in range(3)))
    assert "us by greedy merging" in str(report) and "gap" in str(report)
    one, other = (IlpSummary(1.0, 1.0, 1.0, 1, 1, seconds=seconds) for seconds in (0.1, 0.2))
    assert one == other


_PRINT = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
import training_models
from test_compiler_planner import random_function
from torch_reformer.compiler.fusion.ilp import model
from torch_reformer.compiler.cli import planned
model.Solution.is_better = lambda self, other: self.cost <= other.cost  # so that greedy groups are replaced
for seed in range(2):
    for report in planned(random_function(seed), tuple(torch.empty(300, 200) for _ in range(3)), "sm_90"):
        print(report)
model, inputs = training_models.make("resnet")
for report in planned(model, tuple(inputs), "sm_90"):
    print(report)
"""


@pytest.mark.slow
def test_every_process_has_the_same():
    folder = Path(__file__).parent
    command = [sys.executable, "-c", _PRINT, str(folder), str(folder.parent)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    texts = {process.communicate()[0] for process in processes}
    assert not any(process.returncode for process in processes)
    assert len(texts) == 1 and "planned" in texts.pop()
