"""Plans over symbols: what a plan for some sizes assumes of them, and plans that are made again for other sizes."""

import operator
import random
from collections.abc import Callable

import pytest
import torch
import training_models
from gpu_rules import as_on_gpus
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import needs_aten
from torch import nn
from torch.nn import functional as F

from torch_reformer.compiler import backend
from torch_reformer.compiler.codegen import size_constants
from torch_reformer.compiler.codegen.map_tables import MapTable
from torch_reformer.compiler.fusion.ilp import milp
from torch_reformer.compiler.runtime import dynamic
from torch_reformer.compiler.runtime.executable import Executable
from torch_reformer.program.values import as_value
from torch_reformer.runtime import sizes
from torch_reformer.runtime.sizes import Real, Size, Symbols, about_cost, estimate

pytestmark = needs_aten
NUMBERS = st.integers(2, 60)


def symbols(a=5, b=12):
    known = Symbols({"a": a, "b": b})
    return known, *known.sizes().values()


def expression(draw, a, b):
    """A size of both symbols by operators that the compiler uses, and comparisons of it."""
    operators = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
    found = [a, b, 1, 2, 8, 64]
    for op, i, j in draw:
        one, other = found[i % len(found)], found[j % len(found)]
        if op > 2 and other <= 0:
            other = 3
        found.append(operators[op](one, other))
    return found[-1]


DRAWN = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=6)


@settings(max_examples=60)
@given(DRAWN, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_expressions(drawn, a, b, other_a, other_b):
    """An expression for some numbers gives what plain numbers give, also for others for which the guards hold."""
    known, one, two = symbols(a, b)
    size = expression(drawn, one, two)
    assert estimate(size) == expression(drawn, a, b)
    compared = size > 40
    assert compared == (expression(drawn, a, b) > 40)
    holds = known.holds()
    assert holds(a, b)
    if holds(other_a, other_b):
        expected = expression(drawn, other_a, other_b)
        assert known.function([size])(other_a, other_b) == [expected] and (expected > 40) == compared


@given(NUMBERS, st.floats(allow_nan=False, width=32))
def test_comparisons(number, other):
    """Comparisons with numbers, fractions and infinities, and guards that hold where the outcome is the same."""
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        known, size, _ = symbols(number)
        outcome = compare(size, other)
        assert outcome == compare(number, other)
        holds = known.holds()
        for a in range(2, 60):
            assert not holds(a, 2) or compare(a, other) == outcome


def test_guards_only_where_sizes_decide():
    known, a, b = symbols()
    assert a > 0 and a * b >= 4 and a * 64 != 0 and a + b > b and (a * b) // b == a and (a * 8) % 4 == 0
    assert 2 * a + 1 > 2 and not a * 16 < a and a % 7 < 7 if known.guards else True
    assert not known.guards
    assert a < b and known.guards


def test_no_conversion_is_silent():
    """Whatever needs a plain number notes which it was."""
    conversions = [
        lambda size: list(range(size)),
        lambda size: "x" * size,
        lambda size: [*range(9)][size],
        lambda size: torch.empty(size).shape,
        lambda size: torch.tensor([1.0]).expand(size).shape,
        float,
        int,
        lambda size: 1 << size,
        lambda size: size.bit_length(),
        lambda size: bytes(size),
        lambda size: (size / 3) < 7,
        lambda size: float(2.0 / size),
    ]
    for convert in conversions:
        known, size, _ = symbols()
        assert convert(size) == convert(5)
        assert known.holds()(5, 2) and not known.holds()(6, 2)


def test_keys():
    """Equal expressions are one key; others are different ones, though the numbers are equal."""
    known, a, b = symbols(5, 5)
    found = {a * b: 1, (a, 3): 2}
    assert found[b * a] == 1 and found[(a, 3)] == 2 and 25 not in found and (b, 3) not in found
    assert not known.guards
    assert str(a * 2) != str(b * 2)
    known.close()
    assert a != 5 and a == a
    with pytest.raises(RuntimeError, match="not compared"):
        assert a < 9


def test_tables_are_of_one_size():
    """A table that holds sizes is made for these numbers."""
    known, a, b = symbols()
    table = MapTable((((0, 1.0),), ((b, 1.0),)), a * 2, 1, False, torch.device("cpu"))
    fixed = sizes.replaced(table, operator.index)
    assert fixed.tensor().tolist() == [[0], [120]]
    assert known.holds()(5, 12) and not known.holds()(5, 13) and not known.holds()(6, 12)


def test_decisions_about_cost_note_no_guards():
    known, a, _ = symbols()
    with about_cost():
        assert a * 100 < 501 and a == 5
    assert not known.guards


def test_constants_of_programs():
    """A factor that depends on sizes stays an expression, also with infinities and in nested arithmetic."""
    known, a, b = symbols()
    factor = as_value(1 / (a * b) - 0.5).attribute
    assert type(factor) is Real and not known.guards
    bits = known.function([factor.bits()])
    assert bits(7, 9) == [sizes.bits_of_double(1 / 63 - 0.5)]
    assert 1 / a != 1 and type(1.0 * a) is Real and not known.guards


def steps_of(executable: Executable) -> list:
    """Steps of a plan, with tensors numbered anew, and equal views once: an instance may have a view of each of two
    layouts that are equal for its sizes."""
    numbers, views, steps = {}, {}, []

    def number(tensor):
        return numbers.setdefault(tensor, len(numbers))

    for step in executable.plan.steps:
        inputs = tuple(map(number, step.inputs))
        if step.kind == "view":
            key = step.what, inputs
            if key in views:
                numbers[step.made[0]] = views[key]
                continue
            views[key] = number(step.made[0])
        what = (step.call.name, repr(step.call.described())) if step.call else step.what
        steps.append(
            (step.kind, what, inputs, [number(made) for made in step.made], [number(each) for each in step.into])
        )
    return [*steps, [number(output) for output in executable.plan.outputs], executable.fixed]


@pytest.fixture
def compared(monkeypatch):
    """Instances that are made while a test runs, each with the plan that its sizes get by themselves. Decisions about
    cost note guards, so that both have to be equal."""
    monkeypatch.setattr(sizes, "NOTES_COSTS", True)
    found, of_template = [], dynamic.Dynamic._of_template

    def compare(self, args):
        served = self._served
        made = of_template(self, args)
        if self._served > served:
            found.append((made, self.plan(self._sized(args))))
        return made

    monkeypatch.setattr(dynamic.Dynamic, "_of_template", compare)
    torch._dynamo.reset()
    return found


def dynamics(monkeypatch) -> list[dynamic.Dynamic]:
    """Graphs with symbolic sizes that are compiled from now on; `first` are the first sizes that are planned."""
    found, init, template = [], dynamic.Dynamic.__init__, dynamic.Dynamic._template

    def noted(self, *args):
        init(self, *args)
        found.append(self)

    def noted_template(self, values):
        self.__dict__.setdefault("first", dict(values))
        return template(self, values)

    monkeypatch.setattr(dynamic.Dynamic, "__init__", noted)
    monkeypatch.setattr(dynamic.Dynamic, "_template", noted_template)
    torch._dynamo.reset()
    return found


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.out = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 50)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)

    def forward(self, words):
        x = self.words(words) + torch.arange(words.shape[1])[:, None] / 7
        return self.out(self.norm(self.layer(x))).log_softmax(-1)[..., 0].mean()


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = training_models.conv_norm(3, 8, stride=2), training_models.conv_norm(8, 8)
        self.residual, self.out = training_models.Residual(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = F.max_pool2d(self.second(self.first(x)), 2)
        return self.out(self.residual(x).mean((2, 3))).square().mean()


class Rows(nn.Module):
    """Reductions, softmax, parts and sums along dimensions that vary."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 24)

    def forward(self, x):
        one, other = self.linear(x).chunk(2, -1)
        weights = (one * other.sigmoid()).mean(-1).softmax(-1)
        x = torch.cat((x * weights[..., None], one.flip(-1)), -1)
        return x.var() + (x.amax(1) - x.mean(1)).square().sum() / x.shape[1]


MODELS = {
    "words": (Words, lambda rows, size: torch.randint(50, (rows, size))),
    "images": (Images, lambda rows, size: torch.randn(rows, 3, size, size)),
    "rows": (Rows, lambda rows, size: torch.randn(rows, size, 12)),
}


def check_instances(graphs: list[dynamic.Dynamic], drawn: Callable[[int], int]) -> None:
    """Compare instances of the first templates with the plans that their sizes get by themselves. drawn: gives another
    size for a size, at random."""
    for graph in graphs:
        assert graph.templates and graph.reason is None
        template, values = graph.templates[-1], graph.first
        served = []
        for _ in range(2000):
            new = {size: drawn(size) for size in {*values.values()}}
            other = {name: new[size] for name, size in values.items()}
            served += [other] if template.holds(*other.values()) and other != values else []
        assert len(served) > 5
        for other in random.sample(served, 5):
            made, static = template.at(tuple(other.values())), graph.plan(graph.symbolic.at(other), starts=False)
            assert steps_of(made) == steps_of(static)


@pytest.fixture
def exact(monkeypatch):
    """Decisions about cost note guards, and none is left to an integer program, so that plans have to be equal."""
    monkeypatch.setattr(sizes, "NOTES_COSTS", True)
    monkeypatch.setattr(milp, "name", lambda: None)


@pytest.mark.parametrize("name", MODELS)
def test_instances_are_the_plans_of_their_sizes(name, exact, monkeypatch):
    """Step by step, over random sizes for which the guards hold; and gradients are those of eager mode."""
    graphs, (make, inputs) = dynamics(monkeypatch), MODELS[name]
    model = make()
    run = torch.compile(model, backend=backend.reformer, dynamic=True)
    for rows, size in ((5, 45), (5, 49), (7, 33)):
        x, found = inputs(rows, size), []
        for call in (run, model):
            model.zero_grad()
            (loss := call(x)).backward()
            found.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        assert training_models.relative_error(*found) < 2e-5
    assert len(graphs) == 2 and {*graphs[0].first.values()} <= {5, 45}
    check_instances(graphs, lambda size: random.choice((3, 5, 7, 11)) if size == 5 else random.randrange(33, 200))


def test_concatenations_along_a_size(monkeypatch):
    """One plan serves all sizes: no table of a map depends on them."""

    def function(x, weight):
        both = torch.cat((x @ weight).chunk(2, -1))
        return (both.softmax(-1) * both).square().mean()

    graphs, run = dynamics(monkeypatch), torch.compile(function, backend=backend.reformer)
    with as_on_gpus():
        for rows in (5, 9, 7):
            x, weight = torch.randn(rows, 45, 12), torch.randn(12, 24, requires_grad=True)
            torch._dynamo.mark_dynamic(x, 0)
            found, expected = (torch.autograd.grad(call(x, weight), weight) for call in (run, function))
            torch.testing.assert_close(found, expected)
    assert [(len(graph.templates), graph.reason) for graph in graphs] == [(1, None)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", training_models.MODELS)
def test_instances_of_many_networks(name, exact, monkeypatch):
    graphs = dynamics(monkeypatch)
    model, (x, *others) = training_models.make(name)
    x = x.repeat(6, *[1] * (x.dim() - 1))[:21]
    if x.dim() == 2:  # words
        x = x.repeat(1, 5)[:, :37].clone()
        torch._dynamo.mark_dynamic(x, 1)
    torch._dynamo.mark_dynamic(x, 0)
    run = torch.compile(model, backend=backend.reformer)
    for batch in (x, x[:17].clone()):
        found = []
        for call in (run, model):
            model.zero_grad()
            found.append([each.clone() for each in training_models.step(call, model, [batch, *others])])
        assert training_models.relative_error(*found) < 1e-4
    check_instances(graphs, lambda size: random.randrange(size // 2, 3 * size))


@pytest.mark.parametrize("how", ["automatic", "all", "marked"])
def test_few_plans_for_many_sizes(how, monkeypatch):
    """A plan over symbols serves many lengths, whatever says that the size changes."""
    found = dynamics(monkeypatch)
    dynamic_sizes = {"automatic": None, "all": True, "marked": False}[how]
    run = torch.compile(lambda x: (x * 2).softmax(-1).sum(0), backend=backend.reformer, dynamic=dynamic_sizes)
    for length in range(9, 60):
        x = torch.randn(3, length)
        if how == "marked":
            torch._dynamo.mark_dynamic(x, 1)
        torch.testing.assert_close(run(x), (x * 2).softmax(-1).sum(0))
    (graph,) = found
    assert len(graph.templates) <= 3 and graph.reason is None


def test_what_is_made_for_one_size(monkeypatch):
    """A sum of few elements has a term for each, so each size gets a plan of its own, and the report says why."""
    monkeypatch.setattr(dynamic, "_TRIED", 3)
    (found, reports), function = (dynamics(monkeypatch), []), lambda x: x.exp().sum(1)
    options = {"report": reports.append}
    run = torch.compile(function, backend=backend.reformer, dynamic=True, options=options)
    for rows in range(2, 8):
        x = torch.randn(6, rows, 40)
        torch.testing.assert_close(run(x), function(x))
    (graph,) = found
    assert len(graph.templates) == 3 and len(reports) == 6
    assert "for these sizes only: tables" in str(reports[-1]) and "for these sizes only" not in str(reports[0])


def test_templates_are_limited(monkeypatch):
    monkeypatch.setattr(dynamic, "TEMPLATES", 1)
    found, function = dynamics(monkeypatch), lambda x: x.exp().sum(0)
    run = torch.compile(function, backend=backend.reformer, dynamic=True)
    for rows in (4, 5, 6, 4):
        x = torch.randn(rows, 40)
        torch.testing.assert_close(run(x), function(x))
    assert len(found[0].templates) == 1 and found[0].reason is None


def test_arguments_of_other_strides(monkeypatch):
    """Arguments that are not as the graph was traced get a plan of their own."""
    found = dynamics(monkeypatch)
    run = torch.compile(lambda x: x.relu() + 1, backend=backend.reformer, dynamic=True)
    x = torch.randn(6, 10)
    run(x)
    (graph,) = found
    template = graph.templates[0]
    values = tuple(graph.symbolic.values([6, 10, x]))
    assert values and template.holds(6, 10) and template.takes((6, 10), [6, 10, x])
    assert not template.takes((6, 10), [6, 10, torch.randn(10, 6).t()])
    (result,) = graph([6, 10, torch.randn(10, 6).t()])
    assert result.shape == (6, 10)


def test_a_size_is_no_int():
    _, a, _ = symbols()
    assert isinstance(a, int) and type(a) is Size and not isinstance(a, bool)


def test_kernels_of_gpus_have_no_constants_of_sizes(monkeypatch):
    """Where constants are part of a kernel's text, those that are computed of sizes are operands: programs of two sizes
    are the same."""
    monkeypatch.setattr(size_constants, "DEVICES", ("cpu",))
    graphs = dynamics(monkeypatch)

    def function(x):
        return (x - x.mean(0)).square().mean(0) * x.shape[0]

    run = torch.compile(function, backend=backend.reformer, dynamic=True)
    for rows in (90, 120, 300):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(run(x), function(x))
    (graph,) = graphs
    values = [tuple(rows if size == 90 else size for size in graph.first.values()) for rows in (90, 130)]
    made = [graph.templates[-1].at(each) for each in values]
    programs = [[step.what for step in each.plan.steps if step.kind == "stitch"] for each in made]
    assert programs[0] == programs[1] and steps_of(made[0]) != steps_of(made[1])
