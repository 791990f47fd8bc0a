"""Binary linear programs by each installed solver: optimal solutions, and limits of the search."""

import importlib.util
import itertools
import random

import pytest
from marks import needs_solver

from torch_reformer.compiler.fusion.ilp import milp

# Without a solver the tests are skipped, in CI they fail.
SOLVERS = [name for name in milp._SOLVERS if importlib.util.find_spec(name)] or list(milp._SOLVERS)
pytestmark = needs_solver
COUNT = 10


@pytest.fixture(params=SOLVERS)
def by(request, monkeypatch):
    made = milp._SOLVERS[request.param]()
    monkeypatch.setattr(milp, "_solver", lambda: made)
    return request.param


def covering(seed: int) -> milp.Model:
    """Random covering problem: at least one variable of some sets is 1, and at most one of some pairs."""
    generator, model = random.Random(seed), milp.Model()
    for _ in range(COUNT):
        model.variable(generator.randint(1, 1000) * 1e6)
    for _ in range(6):
        model.row(dict.fromkeys(generator.sample(range(COUNT), 3), 1), low=1)
    for _ in range(3):
        model.row(dict.fromkeys(generator.sample(range(COUNT), 2), 1), high=1)
    return model


def cost(model: milp.Model, values) -> float:
    return sum(a * b for a, b in zip(model.costs, values, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_the_best_solution(seed, by):
    model = covering(seed)
    solutions = [each for each in itertools.product((0.0, 1.0), repeat=COUNT) if model.allows(each)]
    best, worst = (by_cost(solutions, key=lambda each: cost(model, each)) for by_cost in (min, max))
    found, relaxed = model.solved(list(worst)), model.solved()
    assert model.allows([round(each) for each in found.values]) and found.is_integral
    assert cost(model, found.values) == pytest.approx(cost(model, best), rel=2 * milp.GAP)
    assert found.bound == pytest.approx(cost(model, best), rel=2 * milp.GAP)
    assert relaxed.bound <= found.bound * (1 + 1e-6)


def test_what_has_no_solution(by):
    model = milp.Model()
    one, other = model.variable(1.0), model.variable(2.0)
    model.row({one: 1, other: 1}, low=2)
    model.row({one: 1, other: 1}, high=1)
    assert not model.allows([1.0, 1.0])
    assert model.solved([1.0, 1.0]).values is None


def test_time_is_no_limit(by, monkeypatch):
    """Limits are nodes and a gap, never time: all processes and ranks must find the same solution."""
    given = {}
    if by == "highspy":
        import highspy

        def recorded(self, name, value, own=highspy.Highs.setOptionValue):
            given[name] = value
            return own(self, name, value)

        monkeypatch.setattr(highspy.Highs, "setOptionValue", recorded)
        expected = {"output_flag": False, "threads": 1, "mip_max_nodes": milp.NODES, "mip_rel_gap": milp.GAP}
        expected["presolve"] = "off"
    else:
        from scipy import optimize

        def recorded(*args, options, own=optimize.milp, **others):
            given.update(options)  # milp takes from it
            return own(*args, options=options, **others)

        monkeypatch.setattr(optimize, "milp", recorded)
        expected = {"node_limit": milp.NODES, "mip_rel_gap": milp.GAP}
    made = milp._SOLVERS[by]()
    model = covering(0)
    made(model, [each / 1e9 for each in model.costs], [1.0] * COUNT)
    assert given == expected


def test_the_first_that_is_installed(monkeypatch):
    missing = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else name)
    assert milp.name() == "highspy"
    missing.add("highspy")
    assert milp.name() == "scipy"
    missing.add("scipy")
    assert milp.name() is None
