"""Graphs with operators that no plan computes: plans compute the rest (lowering/split.py, runtime/partial_plan.py)."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from partial_cases import CASES, COLUMNS, ROWS, Model, N, complex_rows, flex, rotary
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.lowering.split import Subgraph, is_whole, split
from torch_reformer.compiler.runtime import run_graph

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def outcome(run: Callable, model: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    """The loss, the gradients and the buffers."""
    model.zero_grad()
    torch.manual_seed(seed)
    x = x.clone().requires_grad_(x.is_floating_point())
    loss = run(x)
    loss.backward()
    gradients = [parameter.grad for parameter in (x, *model.parameters()) if parameter.grad is not None]
    dense = [each.to_dense() for each in gradients]
    return [loss.detach(), *dense, *(buffer.clone() for buffer in model.buffers())]


def check(model: nn.Module, x: Tensor, warns: str | None = None, **options) -> list:
    """Compare two steps with eager's, and return the reports. The model's graphs are planned for the most part, or
    there is a warning that matches `warns`."""
    reports: list = []
    run = torch.compile(model, backend=reformer, options={"report": reports.append}, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [outcome(run, model, x, seed) for seed in (1, 2)]
    sentences = [str(warning.message) for warning in caught if "without a plan" in str(warning.message)]
    assert all(warns and warns in sentence for sentence in sentences), sentences
    assert bool(sentences) == bool(warns)
    expected = [outcome(model, model, x, seed) for seed in (1, 2)]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    return reports


def kinds(reports: list) -> list[str]:
    return [line.kind for report in reports for line in report.lines]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@pytest.mark.parametrize("name", CASES)
def test_plans_of_the_rest(name):
    middle, line = CASES[name]
    reports = check(Model(middle), torch.randn(N, ROWS, COLUMNS, dtype=torch.float64))
    assert any(kind.startswith(line) for kind in kinds(reports))
    forward, backward, *_ = (kinds([report]) for report in reports[-2:])
    assert "stitch" in forward and "stitch" in backward


def test_gradients_of_flex_attention(monkeypatch):
    """PyTorch has them for CPUs, too, but does not say so."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    reports = check(Model(lambda model, h: flex(model, h, h)), torch.randn(N, ROWS, COLUMNS, dtype=torch.float64))
    assert "flex_attention_backward" in kinds(reports)


def test_sparse_gradients():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.bags = nn.Embedding(50, COLUMNS, sparse=True), nn.EmbeddingBag(50, COLUMNS, sparse=True)
            self.norm = nn.LayerNorm(COLUMNS)

        def forward(self, x):
            return F.gelu(self.norm(self.words(x).exp() + self.bags(x.mT)[:, None])).square().mean()

    reports = check(Words().double(), torch.randint(0, 50, (ROWS, ROWS)))
    assert "stitch" in kinds(reports[-1:])


class Layers(nn.Module):
    """Attention with rotary embeddings by complex numbers, twice."""

    def __init__(self):
        super().__init__()
        self.models = nn.ModuleList([Model(rotary) for _ in range(2)])

    def forward(self, x):
        for model in self.models:
            h = model.norm(model.first(x))
            q, k = rotary(model, h), rotary(model, model.inner(h))
            x = x + model.last(F.gelu(q * k.softmax(-1)))
        return x.square().mean()


def test_few_subgraphs(monkeypatch):
    """Independent operators share one, so a layer needs two more, forward and backward."""
    found, original = [], run_graph.split
    monkeypatch.setattr(run_graph, "split", lambda module: found.append(original(module)) or found[-1])
    check(Layers(), torch.randn(N, ROWS, COLUMNS, dtype=torch.float64))
    partial = [[each.is_planned for each in subgraphs] for subgraphs in found if len(subgraphs) > 1]
    assert partial == [[True, False, True, False, True]] * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["conjugate", "rows that are kept", "random in a checkpoint", "branches"])
def test_sizes_that_change(name, dynamic):
    model = Model(CASES[name][0])
    run = torch.compile(model, backend=reformer, dynamic=dynamic)
    for count in (3, 5, 4):
        x = torch.randn(count, ROWS, COLUMNS, dtype=torch.float64)
        found, expected = (outcome(each, model, x, 1) for each in (run, model))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_graph_that_runs_backward_twice():
    model = Model(rotary)
    x = torch.randn(N, ROWS, COLUMNS, dtype=torch.float64)
    loss = torch.compile(model, backend=reformer)(x)
    parameters = [*model.first.parameters(), *model.last.parameters()]
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), first, rtol=0, atol=0)


def test_a_loss_whose_gradient_the_forward_computes():
    """The backward scales it in place, and runs twice."""
    model, targets = Model(rotary, columns=320), torch.arange(N * ROWS)

    def loss(x):
        return F.cross_entropy(model.last(rotary(model, model.first(x))).flatten(0, 1), targets)

    x = torch.randn(N, ROWS, 320, dtype=torch.float64)
    found = []
    for run in (torch.compile(loss, backend=reformer), loss):
        result = run(x) * 3
        parameters = [*model.first.parameters(), *model.last.parameters()]
        found.append([torch.autograd.grad(result, parameters, retain_graph=True) for _ in range(2)])
    torch.testing.assert_close(*found)


def test_dropout_in_a_checkpoint():
    """The backward has the forward's mask, beside operators that no plan computes."""

    def function(x):
        return torch.view_as_real(torch.view_as_complex(F.dropout(x, 0.5).sin().view(-1, 2)).conj().resolve_conj())

    x = torch.rand(64, 2, dtype=torch.float64, requires_grad=True)
    run = torch.compile(lambda x: checkpoint(function, x, use_reentrant=False), backend=reformer)
    result = run(x)
    result.sum().backward()
    kept = result != 0
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(x.grad, torch.where(kept, (2 * x).cos() * 2 * signs, x.grad.new_zeros(())).detach())
    assert 0 < kept.sum() < kept.numel()


def saved_bytes(run: Callable, x: Tensor) -> int:
    """Bytes of the tensors that a forward saves, each counted once."""
    saved: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(x)
    return sum(saved.values())


class Checkpointed(nn.Module):
    def __init__(self, middle: Callable):
        super().__init__()
        self.models = nn.ModuleList([Model(middle, dtype=torch.float32) for _ in range(4)])

    def forward(self, x):
        for model in self.models:
            x = checkpoint(model.block, x, use_reentrant=False)
        return x.sum()


@pytest.mark.parametrize("middle", [complex_rows, lambda _, h: h * torch.rand_like(h)])
def test_bytes_that_checkpoints_save(middle):
    """Those of the checkpoints' arguments and parameters, and the states of generators."""
    model, x = Checkpointed(middle), torch.randn(64, ROWS, COLUMNS, requires_grad=True)
    owned = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert saved_bytes(torch.compile(model, backend=reformer), x) <= 4 * x.nbytes + owned + 4 * 5056


def traced(function: Callable, *args) -> torch.fx.GraphModule:
    """The graph of a function that gives a tuple."""
    return make_fx(function, tracing_mode="fake")(*args)


def complex_chain(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x).square())


def names(subgraph: Subgraph) -> list[str]:
    return [node.target.overloadpacket.__name__ for node in subgraph.operators]


def test_operators_that_give_nothing():
    """They leave a graph whole."""

    def function(x):
        torch._assert_async((x > 0).all(), "too small")
        return (x * 2,)

    module = traced(function, torch.ones(3))
    assert is_whole(module, split(module))


def test_recomputation_stays_late():
    """An operator runs where the graph has it, unless operators without a plan need it earlier."""

    def function(x, saved):
        early = complex_chain(x.exp())
        later = complex_chain(early.sin())
        return (later + saved.cos(),)

    subgraphs = split(traced(function, torch.randn(4, 2), torch.randn(4, 2)))
    assert [each.is_planned for each in subgraphs] == [True, False, True, False, True]
    assert [names(each) for each in subgraphs[::2]] == [["exp"], ["sin"], ["cos", "add"]]


def test_views_are_taken_again():
    """A view is no result of a subgraph: the one that reads it takes it from the memory's own tensor."""

    def function(x):
        rows = x.exp()
        return (complex_chain(rows.view(4, 2)) * rows.view(4, 2),)

    *_, last = split(traced(function, torch.randn(8)))
    assert sorted(node.name for node in last.inputs) == ["exp", "view_as_real"]


def test_writes_of_inputs():
    """A subgraph writes an input only after all that read it or look at its bits, whichever runs them."""

    def function(x, memory):
        bits = memory.view(torch.int64)
        before = complex_chain(x.exp()) * memory
        memory.mul_(2)
        return before + (bits & 1).to(x.dtype) + memory

    x, memory = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    other = memory.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.compile(function, backend=reformer)(x, memory)
    torch.testing.assert_close(found, function(x, other))
    torch.testing.assert_close(memory, other)


def test_memory_is_freed():
    """A value is freed after its last use, also if PyTorch runs that, and an argument, too."""
    alive: list[bool] = []
    seen: list[weakref.ref] = []
    name = "reformer_partial::{}"

    @torch.library.custom_op(name.format("look"), mutates_args=())
    def look(x: Tensor) -> Tensor:
        alive.append(any(ref() is not None for ref in seen))
        seen.append(weakref.ref(x.untyped_storage()))
        return x[x > 0]

    @look.register_fake
    def _(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    def function(x):
        return look(look(x.exp()) * 2).sum()

    x = torch.randn(100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.compile(function, backend=reformer)(x)
    torch.testing.assert_close(found, (x.exp() * 2).sum())
    assert alive == [False, False]


def test_strides_that_fake_results_are_wrong_about():
    @torch.library.custom_op("reformer_partial::turned", mutates_args=())
    def turned(x: Tensor) -> Tensor:
        return x.t().contiguous().t()

    turned.register_fake(torch.empty_like)

    def function(x):
        pairs = torch.view_as_complex(x.exp())
        return torch.view_as_real(turned(pairs)).exp()

    x = torch.randn(3, 5, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.compile(function, backend=reformer)(x), function(x))


def test_counts_of_elements_in_a_backward():
    """A backward with a number that depended on values, and symbolic sizes, is not one for the first call's number."""

    def function(x, mask):
        return x.sin().sum() * torch.nonzero(mask).shape[0]

    run = torch.compile(function, backend=reformer, dynamic=True)
    for count in (4, 3, 8, 2):
        x, mask = torch.randn(8, 8, requires_grad=True), torch.arange(8) < count
        found, expected = (torch.autograd.grad(each(x, mask), x) for each in (run, function))
        torch.testing.assert_close(found, expected)
