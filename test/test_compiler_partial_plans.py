"""Graphs with operators that no plan computes: plans compute the rest (lowering/split.py, runtime/partial_plan.py)."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.lowering.split import Subgraph, split
from torch_reformer.compiler.runtime import executable

pytestmark = needs_aten
N, ROWS, COLUMNS = 4, 8, 32


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


class Model(nn.Module):
    """A layer, what is tested, and a layer and a loss."""

    def __init__(self, middle: Callable):
        super().__init__()
        self.middle = middle
        self.first, self.last = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        self.norm, self.inner = nn.LayerNorm(COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        angles = torch.rand(ROWS, 16, dtype=torch.float64)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.register_buffer("packed", torch.randint(-(2**31), 2**31 - 1, (COLUMNS, COLUMNS // 8), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(F.gelu(self.first(x)))
        return F.silu(self.last(self.middle(self, h) + x)).square().mean()

    def block(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self, F.gelu(self.first(x))))


def rotary(model: Model, h: Tensor) -> Tensor:
    pairs = torch.view_as_complex(h.reshape(N, ROWS, 16, 2))
    return torch.view_as_real(pairs * model.turns).flatten(2)


def complex_rows(model: Model, h: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(h.view(-1, 2)).square()).view(h.shape)


def conjugate(model: Model, h: Tensor) -> Tensor:
    spectrum = torch.fft.fft(h, dim=1)
    return (spectrum * spectrum.conj()).real


def bits(model: Model, h: Tensor) -> Tensor:
    return h * (h.detach().view(torch.int64) & 0x7FFFFFFFFFFFFFFF).view(h.dtype)


def quantised(model: Model, h: Tensor) -> Tensor:
    return h + torch.quantize_per_tensor(h.detach().float(), 0.25, 3, torch.qint8).dequantize()


def packed_weight(model: Model, h: Tensor) -> Tensor:
    """As GPTQ packs weights: eight of 4 bits in an int32."""
    halves = model.packed.view(torch.uint8)
    weight = torch.stack([halves & 15, halves >> 4], -1).reshape(COLUMNS, COLUMNS)
    return h @ ((weight.to(h.dtype) - 8) * 0.1)


def definite(h: Tensor) -> Tensor:
    return h.mT @ h + torch.eye(COLUMNS, dtype=h.dtype) * 32


def branches(model: Model, h: Tensor) -> Tensor:
    return torch.cond(h[0, 0, 0] > 0, lambda h: F.gelu(model.inner(h)).exp(), lambda h: h.cos().exp(), (h,))


def loop(model: Model, h: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.tensor(0), h.detach()
    return h + while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, (h.sin() * 1.5).exp() - 1), start)[1]


def flex(model: Model, h: Tensor) -> Tensor:
    """Its gradient is for GPUs only."""
    from torch.nn.attention.flex_attention import flex_attention

    heads = h.detach().view(N, ROWS, 2, 16).transpose(1, 2)
    scores = flex_attention(heads, heads, heads, score_mod=lambda score, b, head, q, k: score + (q - k) * 0.1)
    return h + scores.transpose(1, 2).reshape(h.shape)


@torch.compiler.nested_compile_region
def region(x: Tensor) -> Tensor:
    return F.gelu(x).exp() * 0.1


def kept_rows(model: Model, h: Tensor) -> Tensor:
    rows = h.reshape(-1, COLUMNS)
    kept = (rows[:, 0] > 0).nonzero().squeeze(1)
    return rows.index_add(0, kept, F.silu(rows[kept])).view_as(h)


def experts(model: Model, h: Tensor) -> Tensor:
    rows = h.reshape(-1, COLUMNS)
    weights, chosen = rows[:, :4].softmax(-1).topk(2)
    result = torch.zeros_like(rows)
    for expert in range(2):
        row, place = torch.where(chosen == expert)
        result = result.index_add(0, row, model.inner(rows[row]) * weights[row, place, None])
    return result.view_as(h)


def selective(model: Model, h: Tensor) -> Tensor:
    def policy(_, operator, *args, **kwargs):
        is_product = operator == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def block(h):
        return F.gelu(model.inner(h)).exp() * (torch.rand_like(h) > 0.1)

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(block, h, use_reentrant=False, context_fn=contexts)


CASES: dict[str, tuple[Callable, str]] = {  # the function, and a line of the report
    "rotary": (rotary, "aten::view_as_complex"),
    "Fourier": (lambda _, h: torch.fft.irfft(torch.fft.rfft(h, dim=1) * 2, dim=1, n=ROWS), "aten::_fft_r2c"),
    "Fourier, two dimensions": (lambda _, h: torch.fft.fft2(h).real, "aten::_fft_c2c"),
    "conjugate": (conjugate, "aten::_conj"),
    "view of bits": (bits, "aten::view.dtype"),
    "packed weight": (packed_weight, "aten::view.dtype"),
    "quantised": (quantised, "aten::quantize_per_tensor"),
    "inverse": (lambda _, h: h @ torch.linalg.inv(definite(h)), "with_effects"),
    "solve": (lambda _, h: torch.linalg.solve(definite(h), h.mT).mT, "with_effects"),
    "Cholesky": (lambda _, h: h @ torch.linalg.cholesky(definite(h)), "with_effects"),
    "random in a checkpoint": (
        lambda _, h: checkpoint(lambda h: h.sin() * (torch.rand_like(h) > 0.1), h, use_reentrant=False),
        "run_and_save_rng_state",
    ),
    "selective checkpoint": (selective, "run_and_save_rng_state"),
    "branches": (branches, "cond"),
    "loop": (loop, "while_loop"),
    "flex attention": (flex, "flex_attention"),
    "regions": (lambda _, h: region(region(h)), "invoke_subgraph"),
    "rows that are kept": (kept_rows, "aten::nonzero"),
    "elements that are kept": (lambda _, h: h + torch.masked_select(h, h > 0).exp().mean(), "aten::masked_select"),
    "a number": (lambda _, h: h * h.detach().abs().sum().item(), ""),
    "distinct elements": (lambda _, h: h + torch.unique(h.detach().round()).sum(), "aten::_unique2"),
    "experts": (experts, "aten::nonzero"),
}


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
    reports = check(Model(middle).double(), torch.randn(N, ROWS, COLUMNS, dtype=torch.float64))
    assert any(kind.startswith(line) for kind in kinds(reports))
    forward, backward, *_ = (kinds([report]) for report in reports[-2:])
    assert "stitch" in forward and "stitch" in backward


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
        self.models = nn.ModuleList([Model(rotary).double() for _ in range(2)])

    def forward(self, x):
        for model in self.models:
            h = model.norm(model.first(x))
            q, k = rotary(model, h), rotary(model, model.inner(h))
            x = x + model.last(F.gelu(q * k.softmax(-1)))
        return x.square().mean()


def test_few_subgraphs(monkeypatch):
    """Independent operators share one, so a layer needs two more, forward and backward."""
    found, original = [], executable.split
    monkeypatch.setattr(executable, "split", lambda module: found.append(original(module)) or found[-1])
    check(Layers(), torch.randn(N, ROWS, COLUMNS, dtype=torch.float64))
    partial = [[each.is_planned for each in subgraphs] for subgraphs in found if len(subgraphs) > 1]
    assert partial == [[True, False, True, False, True]] * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["conjugate", "rows that are kept", "random in a checkpoint", "branches"])
def test_sizes_that_change(name, dynamic):
    model = Model(CASES[name][0]).double()
    run = torch.compile(model, backend=reformer, dynamic=dynamic)
    for count in (3, 5, 4):
        x = torch.randn(count, ROWS, COLUMNS, dtype=torch.float64)
        found, expected = (outcome(each, model, x, 1) for each in (run, model))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_graph_that_runs_backward_twice():
    model = Model(rotary).double()
    x = torch.randn(N, ROWS, COLUMNS, dtype=torch.float64)
    loss = torch.compile(model, backend=reformer)(x)
    parameters = [*model.first.parameters(), *model.last.parameters()]
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), first, rtol=0, atol=0)


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
        self.models = nn.ModuleList([Model(middle) for _ in range(4)])

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
