"""Programs over 0 and 1 by each solver that is installed: the best of all solutions; and its limits."""

import importlib.util
import itertools
import random

import pytest

from torch_reformer.compiler.fusion.ilp import milp

SOLVERS = [name for name in milp._SOLVERS if importlib.util.find_spec(name)]
pytestmark = pytest.mark.skipif(not SOLVERS, reason="neither highspy nor SciPy is installed")
COUNT = 10


@pytest.fixture(params=SOLVERS)
def by(request, monkeypatch):
    made = milp._SOLVERS[request.param]()
    monkeypatch.setattr(milp, "_solver", lambda: made)
    return request.param


def covering(seed: int) -> milp.Model:
    """In some sets of variables one at least is 1, and in some pairs one at most."""
    generator, program = random.Random(seed), milp.Model()
    for _ in range(COUNT):
        program.variable(generator.randint(1, 1000) * 1e6)
    for _ in range(6):
        program.row(dict.fromkeys(generator.sample(range(COUNT), 3), 1), low=1)
    for _ in range(3):
        program.row(dict.fromkeys(generator.sample(range(COUNT), 2), 1), high=1)
    return program


def cost(program: milp.Model, values) -> float:
    return sum(a * b for a, b in zip(program.costs, values, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_the_best_solution(seed, by):
    program = covering(seed)
    solutions = [each for each in itertools.product((0.0, 1.0), repeat=COUNT) if program.allows(each)]
    best, worst = (by_cost(solutions, key=lambda each: cost(program, each)) for by_cost in (min, max))
    found, relaxed = program.solved(list(worst)), program.solved()
    assert program.allows([round(each) for each in found.values]) and found.is_of_integers
    assert cost(program, found.values) == pytest.approx(cost(program, best), rel=2 * milp.GAP)
    assert found.bound == pytest.approx(cost(program, best), rel=2 * milp.GAP)
    assert relaxed.bound <= found.bound * (1 + 1e-6)


def test_what_has_no_solution(by):
    program = milp.Model()
    one, other = program.variable(1.0), program.variable(2.0)
    program.row({one: 1, other: 1}, low=2)
    program.row({one: 1, other: 1}, high=1)
    assert not program.allows([1.0, 1.0])
    assert program.solved([1.0, 1.0]).values is None


def test_time_is_no_limit(by, monkeypatch):
    """Every process and every rank has to find the same."""
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
    program = covering(0)
    made(program, [each / 1e9 for each in program.costs], [1.0] * COUNT)
    assert given == expected


def test_the_first_that_is_installed(monkeypatch):
    missing = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else name)
    assert milp.name() == "highspy"
    missing.add("highspy")
    assert milp.name() == "scipy"
    missing.add("scipy")
    assert milp.name() is None
