"""Products of few columns that lie apart, as programs (joint_graph/expand_products.py)."""

import copy

import pytest
import torch
from fake_strides import check_strides
from gpu_rules import as_on_gpus, as_on_hopper
from marks import needs_aten
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from torch_reformer.compiler.joint_graph import expand_products

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)


@pytest.fixture(autouse=True)
def for_few_elements(monkeypatch):
    """Tensors are small here, and on CPUs."""
    monkeypatch.setattr(expand_products, "LITTLE", 0)
    monkeypatch.setattr(expand_products, "DEVICES", {"cpu"})


def heads_inside(x):
    """Rows of heads of [2, heads, 3, 20], which is computed."""
    return (x + 1).permute(0, 2, 3, 1)


def rows(x):
    return heads_inside(x).clone(memory_format=torch.contiguous_format).view(120, x.shape[1])


def mixed(x, y, w, b):
    return torch.mm(rows(x), w).view(2, 3, 20, 4).permute(0, 3, 1, 2).relu()


def with_bias(x, y, w, b):
    return torch.addmm(b, rows(x), w).view(2, 3, 20, 4).permute(0, 3, 1, 2).sin()


def with_weight_of_other_order(x, y, w, b):
    return torch.mm(rows(x), w.t().contiguous().t()).view(2, 3, 20, 4) * 2


def transposed(x, y, w, b):
    return torch.mm(w.t(), rows(x).t()).t().view(2, 3, 20, 4) * 2


def without_copy(x, y, w, b):
    """One batch element's heads are a matrix without being copied."""
    return torch.mm((x[0] + 1).permute(1, 2, 0).view(60, 3), w).view(3, 20, 4) * 2


def mixed_twice(x, y, w, b):
    scores = mixed(x, y, w, b)
    return mixed(scores, y, torch.mm(w.t(), w), b)


def mixed_alike(x, y, w, b):
    return mixed(x, y, w, b), mixed(y, y, w, b).permute(0, 2, 3, 1) - 1


def given(x, y, w, b):
    """A result of the graph keeps its strides."""
    return torch.mm(rows(x), w).view(2, 3, 20, 4)


def of_two_views(x, y, w, b):
    product = torch.mm(rows(x), w)
    return product.view(2, 3, 20, 4) + 1, product.view(2, 3, 20, 4).permute(0, 3, 1, 2).exp()


def joined_without_heads(x, y, w, b):
    return (torch.mm(rows(x), w).view(2, 3, 20, 4) * 2).view(2, 60, 4) + 1


def weight_gradient(x, y, w, b):
    return torch.mm(rows(x).t(), rows(y[:, :2]))


def weight_gradient_and_bias(x, y, w, b):
    gradient = heads_inside(x)
    matrix = gradient.clone(memory_format=torch.contiguous_format).view(120, 3)
    return torch.mm(matrix.t(), rows(y)), gradient.sum([0, 1, 2], keepdim=True), gradient.sum([2, 1, 0])


def some_sums(x, y, w, b):
    """Sums that keep more than the columns."""
    gradient = heads_inside(x)
    matrix = gradient.clone(memory_format=torch.contiguous_format).view(120, 3)
    return torch.mm(matrix.t(), rows(y)), gradient.sum([0, 1]), gradient.sum([1, 2, 3])


EXPANDED = {  # the number of products that are left
    mixed: 0,
    with_bias: 0,
    with_weight_of_other_order: 0,
    transposed: 0,
    without_copy: 0,
    mixed_twice: 1,
    mixed_alike: 0,
    given: 0,
    of_two_views: 0,
    joined_without_heads: 0,
    weight_gradient: 0,
    weight_gradient_and_bias: 0,
    some_sums: 0,
}


def heads_adjacent(x, y, w, b):
    return torch.mm((x + 1).view(-1, 3), w).view(2, 3, 20, 4) * 2


def of_an_input(x, y, w, b):
    """An input may be written to before the backward."""
    matrix = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).view(120, 3)
    return torch.mm(matrix, w).view(2, 3, 20, 4) * 2


def read_as_a_matrix(x, y, w, b):
    return torch.mm(rows(x), w) * 2


def with_a_bias_for_each_row(x, y, w, b):
    return torch.addmm(torch.arange(120.0)[:, None], rows(x), w).view(2, 3, 20, 4) * 2


def scaled(x, y, w, b):
    return torch.addmm(b, rows(x), w, alpha=2).view(2, 3, 20, 4) * 2


def joined_with_heads(x, y, w, b):
    """No view of heads that lie apart has these rows, or these elements."""
    return (torch.mm(rows(x), w).view(2, 3, 20, 4) * 2).view(2, 3, 80) + 1, torch.mm(rows(x), w).view(480) * 2


def of_one_column(x, y, w, b):
    return torch.mm(rows(x), w[:, :1]).view(2, 3, 20, 1) * 2


def of_repeated_rows(x, y, w, b):
    matrix = (x + 1)[:, :, :1].expand(2, 3, 3, 20).permute(0, 2, 3, 1)
    return torch.mm(matrix.clone(memory_format=torch.contiguous_format).view(120, 3), w).view(2, 3, 20, 4) * 2


def of_short_lines(x, y, w, b):
    return torch.mm(rows(x.view(2, 3, 20, 3)), w).view(2, 20, 3, 4) * 2


def weight_gradient_of_other_order(x, y, w, b):
    return torch.mm(rows(x).t(), (y + 1).view(120, 3))


KEPT = {
    heads_adjacent: 1,
    of_an_input: 1,
    read_as_a_matrix: 1,
    with_a_bias_for_each_row: 1,
    scaled: 1,
    joined_with_heads: 2,
    of_one_column: 1,
    of_repeated_rows: 1,
    of_short_lines: 1,
    weight_gradient_of_other_order: 1,
}


def inputs(dtype=torch.float32):
    tensors = [torch.randint(-4, 5, sizes) for sizes in ((2, 3, 3, 20), (2, 3, 3, 20), (3, 4), (4,))]
    return [each.to(dtype) for each in tensors]


@pytest.mark.parametrize("function", [*EXPANDED, *KEPT])
def test_products(function):
    x, y, w, b = inputs()
    w = torch.randint(-4, 5, (4, 4)).float() if function is mixed_twice else w
    if function is mixed_twice:
        x = torch.randint(-4, 5, (2, 4, 3, 20)).float()
    graph = make_fx(function, tracing_mode="fake")(x, y, w, b)
    for _ in range(2):  # the second time nothing is left to expand
        expand_products.expand_products(graph)
        graph.graph.lint()
        products = [node for node in graph.graph.nodes if node.target in PRODUCTS]
        assert len(products) == {**EXPANDED, **KEPT}[function]
    graph.recompile()
    check_strides(graph)
    for one, other in zip(tree_leaves(graph(x, y, w, b)), tree_leaves(function(x, y, w, b)), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride() and one.dtype == other.dtype


def test_limits(monkeypatch):
    def left(heads, columns, elements=0):
        monkeypatch.setattr(expand_products, "LITTLE", elements)
        x, w = torch.randn(2, heads, 3, 20), torch.randn(heads, columns)
        graph = make_fx(lambda x, w: torch.mm(rows(x), w).view(2, 3, 20, columns) * 2, tracing_mode="fake")(x, w)
        expand_products.expand_products(graph)
        return len(graph.graph.find_nodes(op="call_function", target=aten.mm.default))

    most = expand_products.MOST_TERMS
    assert left(most, most) == 0 and left(most + 1, 2) == left(2, most + 1) == 1
    assert left(4, 4, 479) == 0 and left(4, 4, 480) == 1


class TalkingHeads(nn.Module):
    """Attention whose scores are mixed before and after the softmax. einsum: the way they are mixed."""

    def __init__(self, heads, bias=True, shared=False, einsum=False):
        super().__init__()
        self.heads, self.einsum = heads, einsum
        self.qkv = nn.Linear(4 * heads, 12 * heads)
        self.before = nn.Linear(heads, heads, bias=bias)
        self.after = self.before if shared else nn.Linear(heads, heads, bias=bias)

    def mix(self, layer, scores):
        if self.einsum:
            return torch.einsum("bhij,gh->bgij", scores, layer.weight)
        return layer(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def forward(self, x):
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, 4).permute(2, 0, 3, 1, 4)
        scores = self.mix(self.before, q @ k.transpose(-2, -1)).softmax(-1)
        return (self.mix(self.after, scores) @ v).transpose(1, 2).reshape(batch, count, width)


def results(function, model, x, dtype=None):
    """The result and the gradients."""
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        y = function(x)
    weight = torch.linspace(-1, 1, y.numel(), dtype=x.dtype).view(y.shape)
    return [y, *torch.autograd.grad((y * weight).sum(), [x, *model.parameters()])]


def compiled(model, x, dtype=None):
    """The result and the gradients by the rules of GPUs."""
    torch._dynamo.reset()
    with as_on_gpus(), as_on_hopper():
        return results(torch.compile(model, backend="reformer"), model, x, dtype)


@pytest.fixture
def expanded(monkeypatch):
    """The products that were expanded."""
    nodes = []
    for name in ("_expand_product", "_expand_weight_gradient"):
        expand = getattr(expand_products, name)

        def counted(*args, expand=expand):
            if done := expand(*args):
                nodes.append(args[-1])
            return done

        monkeypatch.setattr(expand_products, name, counted)
    return nodes


@needs_aten
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "batch", "count", "options"),
    [
        (4, 3, 50, {}),
        (3, 2, 37, {}),
        (5, 1, 64, {}),
        (8, 2, 40, {}),
        (2, 2, 33, {"bias": False}),
        (4, 2, 48, {"shared": True}),
    ],
)
def test_talking_heads(heads, batch, count, options, dtype, expanded):
    """Results and gradients differ from those in fp64 at most half more than eager's do."""
    torch.manual_seed(0)
    model = TalkingHeads(heads, **options)
    x = torch.randn(batch, count, 4 * heads, requires_grad=True)
    exact = copy.deepcopy(model).double()
    expected = results(exact, exact, x.detach().double().requires_grad_())
    eager, found = results(model, model, x, dtype), compiled(model, x, dtype)
    assert len(expanded) == 6
    one = 1e-6 if dtype is None else torch.finfo(dtype).eps
    for y, by_eager, by_plan in zip(expected, eager, found, strict=True):
        assert by_plan.dtype == by_eager.dtype
        scale = expected[0].abs().max() if y.numel() == heads else y.abs().max()  # a softmax has no gradient of a shift
        errors = [((each.double() - y).norm() / scale / y.numel() ** 0.5).item() for each in (by_eager, by_plan)]
        assert errors[1] <= 1.5 * errors[0] + one


@needs_aten
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_special_values(dtype, expanded):
    """NaN and infinities spread as in products, and sums are wider than their terms."""
    w, b = torch.tensor([[1.0, 0, 2, torch.inf], [1, 0, -1, 1], [0, 1, 1, 1], [2, 2, 2, 0]]), torch.zeros(4)
    w, b = w.to(dtype), b.to(dtype)
    x = torch.randint(-4, 5, (2, 4, 3, 20)).to(dtype)
    x[0, 0, 0, 0], x[0, 1, 0, 1], x[1, 2, 1, 2], x[1, 2, 2, 5] = torch.nan, torch.inf, -torch.inf, 0.0
    if dtype == torch.float16:
        x[1, :, 2, 3] = torch.tensor([60000.0, 60000.0, -60000.0, -30000.0])

    def mix(x):
        return nn.functional.linear(heads_inside(x), w, b).permute(0, 3, 1, 2) * 1

    with as_on_gpus():
        found = torch.compile(mix, backend="reformer")(x)
    assert len(expanded) == 1
    exact = torch.einsum("bhij,gh->bgij", (x + 1).double(), w.double()).to(dtype)
    torch.testing.assert_close(found, exact, equal_nan=True)


@needs_aten
def test_einsum(expanded):
    torch.manual_seed(0)
    model, x = TalkingHeads(4, bias=False, einsum=True), torch.randn(2, 40, 16, requires_grad=True)
    for one, other in zip(compiled(model, x), results(model, model, x), strict=True):
        torch.testing.assert_close(one, other)
    assert len(expanded) == 6


@needs_aten
def test_inference(expanded):
    torch.manual_seed(0)
    model, x = TalkingHeads(4), torch.randn(2, 40, 16)
    with torch.no_grad(), as_on_gpus(), as_on_hopper():
        found = torch.compile(model, backend="reformer")(x)
        torch.testing.assert_close(found, model(x))
    assert len(expanded) == 2


@needs_aten
@pytest.mark.parametrize("batch", [0, 1])
def test_empty_and_small(batch):
    """Batches without elements, and of one line."""
    model, x = TalkingHeads(4), torch.randn(batch, 1, 16, requires_grad=True)
    for one, other in zip(compiled(model, x), results(model, model, x), strict=True):
        torch.testing.assert_close(one, other)


@needs_aten
def test_writes_to_what_is_mixed(expanded):
    """Scores that change in place behind the product, and in the loop that trains the weights."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)

    def step(x):
        scores = x * 2
        mixed = layer(scores.permute(0, 2, 3, 1))
        scores.mul_(3)
        return (mixed * scores.permute(0, 2, 3, 1)).sum((1, 2)), scores

    def trained(function):
        x = torch.linspace(-1, 1, 480).view(2, 4, 3, 20).clone().requires_grad_()
        y, scores = function(x)
        (y.square().sum() + scores.sum()).backward()
        gradients, x.grad = [x.grad, layer.weight.grad, layer.bias.grad], None
        layer.zero_grad()
        return [y, scores, *gradients]

    with as_on_gpus():
        found = trained(torch.compile(step, backend="reformer"))
    assert expanded
    for one, other in zip(found, trained(step), strict=True):
        torch.testing.assert_close(one, other)


@needs_aten
def test_sizes_that_change():
    """Plans for any sizes keep the products."""
    torch.manual_seed(0)
    model = TalkingHeads(4)
    torch._dynamo.reset()
    with as_on_gpus(), as_on_hopper():
        compiled = torch.compile(model, backend="reformer", dynamic=True)
        for batch, count in ((2, 40), (3, 33)):
            x = torch.randn(batch, count, 16, requires_grad=True)
            for one, other in zip(results(compiled, model, x), results(model, model, x), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
