"""Scatters to one place along a dimension, as choices."""

import pytest
import torch
from against_eager import without_dynamo
from gpu_rules import as_on_gpus
from torch.fx.experimental.proxy_tensor import make_fx

from torch_reformer.compiler.ir.fx_utils import is_view
from torch_reformer.compiler.joint_graph.trust_places import trust_places

SCATTERS = {
    "scatter": lambda into, index, source: into.scatter(0, index, source),
    "a number": lambda into, index, source: into.scatter(0, index, 1.5) + source,
    "scatter_add": lambda into, index, source: into.scatter_add(0, index, source),
    "gather's gradient": lambda into, index, source: into.gather(0, index) * source,
}


def outcomes(function, index, dtype, run) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    into, source = (torch.randn(rows, 33, generator=generator).to(dtype).requires_grad_() for rows in (5, 1))
    result = run(function)(into, index, source)
    grads = torch.autograd.grad(result.float().square().sum(), (into, source))
    return [result.detach(), *grads]


@pytest.mark.parametrize("rules", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SCATTERS)
def test_as_eager(name, dtype, rules, monkeypatch):
    index = torch.randint(0, 5, (1, 33), generator=torch.Generator().manual_seed(1))
    expected = outcomes(SCATTERS[name], index, dtype, lambda f: f)
    reports: list = []

    def compiled(function):
        return without_dynamo(function, reports.append)

    if rules == "gpu":
        with as_on_gpus():
            found = outcomes(SCATTERS[name], index, dtype, compiled)
    else:
        found = outcomes(SCATTERS[name], index, dtype, compiled)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.01 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
    kinds = {line.kind for report in reports for line in report.lines}
    assert not any("scatter" in kind for kind in kinds)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_index_out_of_bounds_is_eagers_error(wrong):
    into, index, source = torch.zeros(5, 3), torch.tensor([[0, wrong, 1]]), torch.ones(1, 3)
    for function in (SCATTERS["scatter"], SCATTERS["scatter_add"]):
        messages = []
        for run in (function, without_dynamo(function, lambda _: None)):
            with pytest.raises(RuntimeError) as error:
                run(into, index, source)
            messages.append(str(error.value).splitlines()[0])
        assert messages[0] == messages[1] or messages[0] in messages[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elements_of_rows_that_a_program_computes(dtype):
    """The negative log likelihood of an index, written as a gather: no row is stored."""
    generator, reports = torch.Generator().manual_seed(0), []
    x, index = torch.randn(600, 33, generator=generator).to(dtype), torch.randint(0, 33, (600, 1), generator=generator)
    x[3] = -torch.inf
    x[3, index[3]] = 0
    leaves = [x.clone().requires_grad_() for _ in range(2)]

    def function(x, index):
        return -x.float().log_softmax(-1).gather(1, index)

    with as_on_gpus():
        found = without_dynamo(function, reports.append)(leaves[0], index)
        found.sum().backward()
    expected = function(leaves[1], index)
    expected.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)
    kinds = {line.kind for report in reports for line in report.lines}
    assert kinds <= {"stitch", "reformer::_row_numbers", "aten::arange", "aten::arange.start_step"}


def test_several_places_stay_a_scatter():
    into, index = torch.zeros(5, 3), torch.tensor([[0, 2, 1], [4, 2, 3]])
    reports: list = []
    found = without_dynamo(lambda t, i, s: t.scatter(0, i, s) * 2, reports.append)(into, index, torch.ones(2, 3))
    assert torch.equal(found, into.scatter(0, index, torch.ones(2, 3)) * 2)
    assert any("scatter" in line.kind for report in reports for line in report.lines)


def test_whole_numbers():
    index = torch.randint(0, 5, (1, 33))
    found = without_dynamo(lambda i: torch.zeros(5, 33, dtype=torch.long).scatter(0, i, 1), lambda _: None)(index)
    assert torch.equal(found, torch.zeros(5, 33, dtype=torch.long).scatter(0, index, 1))


OF_PLACES = {  # and how many checks of indices are left
    "maximum": (lambda x, y: x.max(0, keepdim=True).values, 0),
    "largest": (lambda x, y: x.topk(1, 0).values, 0),
    "first of the sorted": (lambda x, y: x.sort(0).values[:1], 0),
    "place of the maximum": (lambda x, y: x.gather(0, x.detach().argmax(0, keepdim=True)), 0),
    "place in fewer rows": (lambda x, y: x.gather(0, y.argmax(0, keepdim=True)), 0),
    "place in more rows": (lambda x, y: y[:3].gather(0, x.detach().argmax(0, keepdim=True).clamp(max=2)), 1),
}


@pytest.mark.parametrize("name", OF_PLACES)
def test_checks_of_places(name):
    """Indices that an operator gives for a dimension of no more elements are not checked again."""
    function, checks = OF_PLACES[name]
    generator, reports = torch.Generator().manual_seed(0), []
    x, y = torch.randn(5, 33, generator=generator), torch.randn(4, 33, generator=generator)
    outcomes = []
    for run in (lambda f: f, lambda f: without_dynamo(f, reports.append)):
        leaves = [each.clone().requires_grad_() for each in (x, y)]
        result = run(function)(*leaves)
        grads = torch.autograd.grad(result.square().sum(), leaves, allow_unused=True)
        outcomes.append([result.detach(), *(grad for grad in grads if grad is not None)])
    for one, other in zip(*outcomes, strict=True):
        assert torch.equal(one, other)
    kinds = [line.kind for report in reports for line in report.lines]
    assert kinds.count("reformer::_row_numbers") == checks


def test_views_of_places_have_their_type():
    def function(x):
        index = x.argmax(0, keepdim=True).view(-1)
        numbers = torch.ops.reformer._row_numbers(index, 5, "index_add", 1)
        return torch.arange(5)[:, None] == numbers.view(1, -1)

    joint = make_fx(function, tracing_mode="fake")(torch.randn(5, 33))
    trust_places(joint)
    views = [node for node in joint.graph.nodes if is_view(node) and node.meta["val"].shape == (1, 33)]
    assert views and {view.meta["val"].dtype for view in views} == {torch.int64}
