"""``options={"memory_budget": x}``: less is saved, and results stay the same."""

import copy

import pytest
import torch
import training_models
from marks import needs_aten
from torch import nn
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from training_models import step
from zoo import HEAVY, made

from torch_reformer.compiler import backend, pipeline
from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.cli import planned
from torch_reformer.compiler.joint_graph import memory_budget
from torch_reformer.compiler.joint_graph.memory_budget import saved_bytes

pytestmark = needs_aten


@pytest.fixture
def saved(monkeypatch):
    """Collects the bytes that each partitioned forward saves."""
    found = []

    def counted(joint, inputs, **options):
        parts = pipeline.partition(joint, inputs, **options)
        found.append(saved_bytes(parts[0], options["num_fwd_outputs"]))
        return parts

    monkeypatch.setitem(backend._AOT_OPTIONS, "partition_fn", counted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_half_is_saved(name, saved):
    case = made(HEAVY[name], 0)
    for budget in (1.0, 0.5):
        with functorch_config.patch(activation_memory_budget=budget):
            planned(case.models[0], tuple(case.inputs), "sm_90")
    assert saved[1] <= 0.5 * saved[0]


def outcome(model, inputs, **options):
    torch._dynamo.reset()
    torch.manual_seed(0)
    own = copy.deepcopy(model)
    found = step(torch.compile(own, backend=reformer, options=options), own, inputs)
    return [*found, *own.buffers()]


@pytest.mark.parametrize(
    ("name", "budget"),
    [("resnet", 0.5), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("vit", 0.5), ("resnet", 0)))],
)
def test_results(name, budget, saved):
    model, inputs = training_models.make(name)
    expected = outcome(model.double(), [each.double() if each.is_floating_point() else each for each in inputs])
    found = outcome(
        model, [each.double() if each.is_floating_point() else each for each in inputs], memory_budget=budget
    )
    assert saved[1] <= budget * saved[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


class Residuals(nn.Module):
    """Products of normalised sums, with factors that are learned, as in transformers of images."""

    def __init__(self, blocks: int = 6):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(blocks))
        self.products = nn.ModuleList(nn.Linear(32, 32) for _ in range(blocks))
        self.factors = nn.ParameterList(torch.rand(32) for _ in range(blocks))

    def forward(self, x):
        for norm, product, factor in zip(self.norms, self.products, self.factors, strict=True):
            x = x + factor * product(norm(x))
        return x.square().sum()


def test_sums_of_residuals_are_computed_again(saved):
    """Most of the sums that norms read are not saved, if they are large: they are computed again from the products'
    results."""
    model, x = Residuals().double(), torch.randn(16384, 32, dtype=torch.float64)
    torch.testing.assert_close(outcome(model, [x]), [*step(model, model, [x]), *model.buffers()], rtol=1e-9, atol=1e-9)
    # What products read and what they give, and statistics; with the norms' inputs, too, it would be 2.9 for each.
    assert saved[0] <= 2.1 * x.nbytes * len(model.norms)


def test_dropout_is_repeated():
    """The gradient uses the mask of the result, although dropout's result is recomputed."""
    layers = [each for _ in range(4) for each in (nn.Dropout(0.5), nn.Tanh())]
    model, x = nn.Sequential(*layers).double(), torch.randn(64, 32, dtype=torch.float64, requires_grad=True)
    torch._dynamo.reset()
    torch.manual_seed(0)
    result = torch.compile(model, backend=reformer, options={"memory_budget": 0.2})(x)
    result.sum().backward()
    # Elements that the last dropout drops get no gradient.
    assert ((x.grad == 0) == (result == 0)).all() and 0 < (result == 0).double().mean() < 1


def test_assertions_have_no_size(monkeypatch):
    """The partition of PyTorch 2.11 asks for the size of each node, but the assertion in a loss has no result."""
    cut, assertions = memory_budget.min_cut_rematerialization_partition, []

    def asking(joint, inputs, **options):
        assertions.extend(node for node in joint.graph.nodes if "assert_async" in str(node.target))
        for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_async.msg):
            assert partitioners._size_of(node) == 0 and "val" in node.meta
        return cut(joint, inputs, **options)

    monkeypatch.setattr(memory_budget, "min_cut_rematerialization_partition", asking)
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 16), nn.Tanh()), torch.randn(4, 8)

    def loss(x, target):
        return nn.functional.cross_entropy(model(x), target)

    target = torch.tensor([1, 2, 15, 0])
    expected = torch.autograd.grad(loss(x, target), list(model.parameters()))
    torch.compile(loss, backend=reformer, options={"memory_budget": 0.5})(x, target).backward()
    torch.testing.assert_close([each.grad for each in model.parameters()], list(expected))
    assert assertions


@pytest.mark.parametrize("budget", [-0.1, 1.5, "half", None, True, float("nan")])
def test_what_is_no_budget(budget):
    torch._dynamo.reset()
    with pytest.raises(Exception, match="memory_budget must be a number from 0 to 1"):
        torch.compile(torch.tanh, backend=reformer, options={"memory_budget": budget})(torch.ones(2))


def test_plans_of_another_budget_are_others(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, inputs = training_models.make("resnet")
    with functorch_config.patch(enable_autograd_cache=True):
        hits = []
        for budget in (1, 0.5, 0.5):
            counters.clear()
            outcome(model, inputs, memory_budget=budget)
            hits.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert hits == [0, 0, 1]
