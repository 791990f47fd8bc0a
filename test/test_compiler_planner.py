"""Regions by integer programming: what they compute, that they cost no more than greedy ones, and that every process
has the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

from torch_reformer.compiler import candidates, choice, planner
from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.plan import planned
from torch_reformer.compiler.planner import Planned

pytestmark = needs_aten
pytest.importorskip("scipy.optimize")


def reports(function, *inputs):
    torch._dynamo.reset()
    found = []
    result = torch.compile(function, backend=reformer, options={"report": found.append})(*inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-4, atol=1e-4)
    return found


def shared_later(x, y, z):
    """Two sums over columns, the second of what the first gave, and a result that goes on with both."""
    a = (x + y).exp()
    b = a * (a.sum(0) * 1e-3) + z
    return b.sum(0), (b.tanh() * y).sum(0), a.sigmoid() + b


def random_function(seed: int):
    """Element-wise operations and sums of what there is, and several results."""
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


@pytest.mark.parametrize("seed", range(8))
def test_results_and_costs(seed):
    inputs = [torch.randn(300, 200) for _ in range(3)]
    for report in reports(random_function(seed), *inputs):
        found = report.planned
        assert found.bound_us <= found.plan_us + 1e-6 and found.plan_us <= found.greedy_us


@pytest.mark.parametrize("seed", range(4))
def test_zeros_and_look_ups(seed, monkeypatch):
    """Kernels that are planned anew write zeros behind rows, and look rows up, as greedy ones do."""
    monkeypatch.setattr(planner, "_LEAST", -1e-9)  # anew also for the same cost
    changed, replace = [], planner._Planner._replace

    def recorded(self, grouping, *args):
        replace(self, grouping, *args)
        changed.append(any(region.copies for region in grouping.regions.values()))

    monkeypatch.setattr(planner._Planner, "_replace", recorded)

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
    """Attention written out, with rows of which all scores are -inf: greedily the mask's row and the softmax are two
    kernels' (as in PyTorch's decomposition of attention)."""
    inputs = [torch.randn(4, 2, 64, 16, requires_grad=False) for _ in range(3)]
    attention = torch.ops.aten._scaled_dot_product_attention_math

    def function(q, k, v):
        return attention(q, k, v)[0]

    (found,) = planned(function, tuple(inputs), "sm_90")
    with monkeypatch.context() as patch:
        patch.setattr(choice, "milp", None)
        (greedy,) = planned(function, tuple(inputs), "sm_90")
    assert greedy.planned is None
    assert found.us < greedy.us
    reports(function, *inputs)


def test_without_a_solver(monkeypatch):
    monkeypatch.setattr(choice, "milp", None)
    (report,) = reports(shared_later, *(torch.randn(300, 200) for _ in range(3)))
    assert report.planned is None


@pytest.mark.parametrize("change", [(planner, "choose", lambda *_: None), (candidates, "MOST", 0)])
def test_where_the_search_finds_nothing(change, monkeypatch):
    monkeypatch.setattr(*change)
    (report,) = planned(shared_later, tuple(torch.randn(300, 200) for _ in range(3)), "sm_90")
    assert report.planned.plan_us == report.planned.greedy_us and report.planned.bound_us == 0


def test_repeated_layers_are_planned_once():
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(12)))
    for report in planned(layers, (torch.randn(512, 64),), "sm_90"):
        assert report.planned.distinct < report.planned.components / 2


def test_a_search_has_limits(monkeypatch):
    """By nodes and a gap, not by time."""
    given, milp = [], choice.milp

    def recorded(*args, **options):
        given.append(dict(options["options"]))  # milp takes from it
        return milp(*args, **options)

    monkeypatch.setattr(choice, "milp", recorded)
    planned(shared_later, tuple(torch.randn(300, 200) for _ in range(3)), "sm_90")
    assert given and all(each == {"node_limit": choice.NODES, "mip_rel_gap": choice.GAP} for each in given)


def test_the_report_tells():
    (report,) = reports(shared_later, *(torch.randn(300, 200) for _ in range(3)))
    assert "us by greedy merging" in str(report) and "gap" in str(report)
    one, other = (Planned(1.0, 1.0, 1.0, 1, 1, seconds) for seconds in (0.1, 0.2))
    assert one == other


_PRINT = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
from test_compiler_planner import random_function
from torch_reformer.compiler.plan import planned
for seed in range(4):
    for report in planned(random_function(seed), tuple(torch.empty(300, 200) for _ in range(3)), "sm_90"):
        print(report)
"""


def test_every_process_has_the_same():
    folder = Path(__file__).parent
    texts = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _PRINT, str(folder), str(folder.parent)]
        texts.add(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(texts) == 1 and "planned" in texts.pop()
