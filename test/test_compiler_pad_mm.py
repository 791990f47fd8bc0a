"""Padding of matrices whose rows do not begin at multiples of 16 bytes (joint_graph/pad_mm.py), here on CPUs, too."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import checkpoint

from torch_reformer.compiler import pipeline
from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.ir import graph as ir
from torch_reformer.compiler.ir.verify import verify
from torch_reformer.compiler.joint_graph import pad_mm
from torch_reformer.compiler.runtime.executable import Executable

pytestmark = needs_aten
WORDS, WIDTH, TOKENS = 1030, 32, (4, 16)


class Language(nn.Module):
    def __init__(self, bias=True, tied=False, padding=False):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scores = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.scores.weight = self.words.weight

    def forward(self, tokens, classes):
        found = self.scores(self.norm(self.second(F.gelu(self.first(self.words(tokens))))))
        return F.cross_entropy(found.flatten(0, 1), classes.flatten())


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(pad_mm, "DEVICES", {"cpu"})
    monkeypatch.setattr(pad_mm, "LEAST", 1)
    torch.manual_seed(0)


def batch():
    return torch.randint(WORDS, TOKENS), torch.randint(WORDS, TOKENS)


def step(function, model, inputs, dtype=torch.bfloat16):
    """The loss and the gradients."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = function(*inputs)
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


def compiled(model, monkeypatch):
    """The compiled model, and the list that its planned graphs are added to."""
    graphs, made = [], Executable.__init__

    def noted(self, *args):
        made(self, *args)
        verify(self.graph)
        graphs.append(self.graph)

    monkeypatch.setattr(Executable, "__init__", noted)
    return torch.compile(model, backend=reformer), graphs


def products(graph):
    return [each for each in graph.operations if isinstance(each, ir.Call) and "mm" in each.operator.name()]


def sizes_of(product):
    """Numbers of rows and columns of a product's matrices."""
    layouts = [*(view.layout for view in product.operands), product.results[0].layout]
    return [size for each in layouts if len(each.sizes) == 2 for size in each.sizes]


def assert_near(found, expected, exact):
    """Compiled results are as near to the exact ones as PyTorch's are."""
    for one, other, right in zip(found, expected, exact, strict=True):
        assert one.stride() == other.stride() and one.dtype == other.dtype
        assert (one - right).norm() <= 1.2 * (other - right).norm() + 1e-6 * right.norm()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("early", [False, True], ids=["in the backward", "early"])
def test_a_vocabulary(bias, tied, early, monkeypatch):
    model, inputs = Language(bias, tied), batch()
    exact, expected = (step(model, model, inputs, dtype) for dtype in (None, torch.bfloat16))
    function, graphs = compiled(model, monkeypatch)
    with functorch_config.patch(donated_buffer=early):
        for _ in range(2):  # the second time in memory that was used before
            assert_near(step(function, model, inputs), expected, exact)
    sizes = [size for graph in graphs for each in products(graph) for size in sizes_of(each)]
    assert sizes.count(1088) == 2 * 3 and WORDS not in sizes


class Labels(nn.Module):
    """A model that scores many labels, several of which are true of each text."""

    def __init__(self):
        super().__init__()
        self.first, self.scores = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, texts, labels):
        return F.binary_cross_entropy_with_logits(self.scores(F.relu(self.first(texts))).float(), labels)


@pytest.mark.parametrize("of", ["labels", "classes"])
def test_gradients_are_written_over_the_scores(of, monkeypatch):
    """Scores and gradients have the same padding, and only the loss's kernel reads the scores."""
    if of == "labels":
        model, inputs = Labels(), (torch.randn(64, WIDTH), torch.rand(64, WORDS).round())
    else:
        model, inputs = Language(bias=False), batch()
    over, reuse_buffers = [], pipeline.reuse_buffers

    def noted(fusion):
        reuse_buffers(fusion)
        over.extend(view for group in fusion.groups.values() for view in group.reused.values())

    monkeypatch.setattr(pipeline, "reuse_buffers", noted)
    exact, expected = (step(model, model, inputs, dtype) for dtype in (None, torch.bfloat16))
    function, _ = compiled(model, monkeypatch)
    with functorch_config.patch(donated_buffer=True):
        for _ in range(2):
            assert_near(step(function, model, inputs), expected, exact)
    assert (1088, 1) in [view.layout.strides for view in over]


@pytest.mark.parametrize("copied", [False, True])
def test_scores_that_are_results_keep_their_strides(copied, monkeypatch):
    """Scores are copied if that takes less time than padding saves; rows of their gradient are aligned in any case."""
    if copied:
        monkeypatch.setattr(pad_mm, "DEEP", WIDTH)

    class Scored(Language):
        def forward(self, tokens, classes):
            found = self.scores(self.norm(self.second(F.gelu(self.first(self.words(tokens))))))
            return F.cross_entropy(found.flatten(0, 1), classes.flatten()), found

    model, inputs = Scored(), batch()
    function, graphs = compiled(model, monkeypatch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (expected_loss, expected), (loss, scores) = model(*inputs), function(*inputs)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-2, atol=0)
    torch.testing.assert_close(scores, expected, rtol=2e-2, atol=2e-2)
    assert scores.stride() == expected.stride()
    forward, backward = graphs
    assert sum(1088 in sizes_of(each) for each in products(forward)) == copied
    loss.backward()
    assert sum(1088 in sizes_of(each) for each in products(backward)) == 2


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_that_are_given(bias, copied, monkeypatch):
    """The loss is computed outside. Rows of its gradient are copied if that takes less time than padding saves."""
    monkeypatch.setattr(pad_mm, "DEEP", 2 * WIDTH if copied else 2 * WIDTH + 1)
    scores = nn.Linear(WIDTH, WORDS, bias=bias)
    function, graphs = compiled(scores, monkeypatch)
    x, grad = torch.randn(*TOKENS, WIDTH), torch.randn(*TOKENS, WORDS)

    def gradients(of, dtype):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            found = of(given)
        return torch.autograd.grad(found, [given, *scores.parameters()], grad.to(found.dtype))

    exact, expected = (gradients(scores, dtype) for dtype in (None, torch.bfloat16))
    assert_near(gradients(function, torch.bfloat16), expected, exact)
    assert sum(1088 in sizes_of(each) for each in products(graphs[1])) == (2 if copied else 0)


class Mixer(nn.Module):
    """A perceptron along the tokens (MLP-Mixer). An odd number of inner features makes two more products unaligned."""

    def __init__(self, tokens, inner, activation):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(WIDTH), nn.Linear(tokens, inner), nn.Linear(inner, tokens)
        self.activation = activation

    def forward(self, x):
        mixed = self.second(self.activation(self.first(self.norm(x).transpose(1, 2))))
        return (x + mixed.transpose(1, 2)).float().square().mean()


@pytest.mark.parametrize("activation", [F.gelu, lambda x: x], ids=["gelu", "none"])
@pytest.mark.parametrize("inner", [64, 75])
def test_products_along_tokens(inner, activation, monkeypatch):
    model, inputs = Mixer(67, inner, activation), (torch.randn(4, 67, WIDTH, requires_grad=True),)
    exact, expected = (step(model, model, inputs, dtype) for dtype in (None, torch.bfloat16))
    function, graphs = compiled(model, monkeypatch)
    for _ in range(2):  # the second time in memory that was used before
        assert_near(step(function, model, inputs), expected, exact)
    for graph in graphs:
        for each in products(graph):
            matrices = [view.layout.strides for view in each.operands if len(view.layout.sizes) == 2]
            assert all(max(strides) % 8 == 0 and min(strides) == 1 for strides in matrices), each


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_padding_spreads_nothing(bad, monkeypatch):
    """A NaN or an infinity reaches the rows, columns and sums that it reaches in PyTorch's products."""
    model, x = Mixer(67, 75, F.relu), torch.randn(4, 67, WIDTH)
    x[1, 5, 3] = bad
    expected = step(model, model, (x.requires_grad_(),))
    found = step(compiled(model, monkeypatch)[0], model, (x,))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())


PRODUCTS_OF_ONE = {
    "with its transpose": lambda x: x @ x.t(),
    "its transpose before": lambda x: x.t() @ x,
    "with itself": lambda x: x[:67] @ x[:67],
    "and another": lambda x: (x @ x.t()[:, :3]) @ x[:3],
    "of a transpose": lambda x: x.t()[:, :67] @ x[:67],
}


@pytest.mark.parametrize("name", PRODUCTS_OF_ONE)
def test_products_of_one_matrix(name, monkeypatch):
    x = torch.randn(80, 67, requires_grad=True)
    tangent = None

    def run(function, dtype):
        nonlocal tangent
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is not None):
            found = function(x)
        tangent = torch.randn(found.shape) if tangent is None else tangent
        return [found.detach(), *torch.autograd.grad(found, x, tangent.to(found.dtype))]

    function = lambda x: PRODUCTS_OF_ONE[name](x.sigmoid() * x)  # noqa: E731
    exact, expected = (run(function, dtype) for dtype in (None, torch.bfloat16))
    assert_near(run(torch.compile(function, backend=reformer), torch.bfloat16), expected, exact)


def test_inputs_and_results_of_the_graph(monkeypatch):
    """A product whose rows are padded may be a result, and its input one of the graph's; weights may be [terms,
    columns]."""
    monkeypatch.setattr(pad_mm, "DEEP", WIDTH)
    first, second = torch.randn(67, 75, requires_grad=True), torch.randn(75, 67, requires_grad=True)
    x = torch.randn(96, 67, requires_grad=True)

    def function(x):
        inner = x @ first
        return inner, torch.addmm(first[0, :67], inner.relu(), second)

    def run(function, dtype):
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is not None):
            found = function(x)
        return [*found, *torch.autograd.grad(found, [x, first, second], [torch.randn_like(each) for each in found])]

    exact, expected = (run(function, dtype) for dtype in (None, torch.bfloat16))
    found = run(torch.compile(function, backend=reformer), torch.bfloat16)
    assert_near([each.detach() for each in found], [each.detach() for each in expected], exact)


def run_in_bf16(function, leaves, *inputs):
    """Results and gradients of a function of inputs and leaves, under autocast to bf16."""
    with torch.autocast("cpu", torch.bfloat16):
        found = function(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    gradients = torch.autograd.grad(sum(each.float().square().sum() for each in found), leaves)
    return [*(each.detach() for each in found), *gradients]


def parameter(*sizes, dtype=torch.float32):
    return nn.Parameter(torch.randn(sizes).to(dtype))


def of_a_product(x, y, z):
    inner = F.linear(x.relu(), y)
    return inner, z.sigmoid() @ inner


def of_a_sum(x, y, z):
    x = x.relu() * 2
    return x.sum(dim=None, keepdim=True) + x @ y * z


def of_few_rows(x, y, z):
    return F.cross_entropy(F.linear(F.gelu(x @ z), y), torch.arange(16))


SEVERAL = {  # functions, and the sizes of their arguments
    "a product is a weight": (of_a_product, (75, 75), (67, 75), (96, 75)),
    "the transpose of a weight": (lambda x, y, z: (x.relu() @ y.t()) @ z.t(), (96, 75), (67, 75), (96, 67)),
    "a tied weight": (lambda x, y, z: (x.relu() @ y).relu() @ y.t() * z, (96, 67), (67, 75), (1, 67)),
    "a summand of its product": (lambda x, y, z: torch.addmm(x.relu(), x.relu(), y) * z, (67, 67), (67, 67), (1, 67)),
    "a sum over all": (of_a_sum, (96, 67), (67, 75), (1, 75)),
    "fewer rows than terms": (of_few_rows, (16, 96), (131, 96), (96, 96)),
}


@pytest.mark.filterwarnings("error:.*torch_reformer")
@pytest.mark.parametrize("deep", [1, 256])
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["autocast", "bf16"])
def test_several_products(name, dtype, deep, monkeypatch):
    """No stage fails, which would be a warning, and results are as PyTorch's."""
    monkeypatch.setattr(pad_mm, "DEEP", deep)
    function, *sizes = SEVERAL[name]
    leaves = [parameter(*each, dtype=dtype) for each in sizes]
    expected = run_in_bf16(function, leaves, *leaves)
    wide = [each.detach().double().requires_grad_() for each in leaves]
    exact = function(*wide)
    exact = exact if isinstance(exact, tuple) else (exact,)
    exact += torch.autograd.grad(sum(each.square().sum() for each in exact), wide)
    found = run_in_bf16(torch.compile(function, backend=reformer), leaves, *leaves)
    for one, other, right in zip(found, expected, exact, strict=True):
        assert one.stride() == other.stride() and one.dtype == other.dtype
        assert (one - right).norm() <= 1.3 * (other - right).norm() + 2e-3 * right.norm()


VIEWED = {
    "transposed": lambda y: y.t(),
    "some columns": lambda y: y[:, :50],
    "some rows": lambda y: y[3:50],
    "repeated": lambda y: y.unsqueeze(0).expand(3, -1, -1),
    "itself and a view": lambda y: (y, y.view(4, 24, 75)),
}


@pytest.mark.parametrize("name", VIEWED)
def test_views_that_are_results(name, monkeypatch):
    monkeypatch.setattr(pad_mm, "DEEP", 1)
    x, weight = parameter(96, 67), parameter(75, 67)

    def function(x):
        return VIEWED[name](F.linear(x.sigmoid(), weight))

    found, expected = (run_in_bf16(each, [x], x) for each in (torch.compile(function, backend=reformer), function))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("product", [F.linear, lambda x, y: torch.addmm(y[:, 0], x, y.t())], ids=["linear", "addmm"])
def test_checkpoints_save_no_rows(product, monkeypatch):
    """What a checkpoint computes again is not saved for its padding."""
    weights = [parameter(67, 67) for _ in range(3)]

    def function(x):
        for weight in weights:
            x = x + checkpoint(lambda x, w: F.gelu(product(F.gelu(product(x, w)), w)), x, weight, use_reentrant=False)
        return x

    x, saved = parameter(512, 67), []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        torch.compile(function, backend=reformer)(x)
    assert sum(each.numel() >= 512 * 67 for each in saved) <= len(weights) + 1


def test_inputs_are_copied_for_deep_products_only(monkeypatch):
    """Products of a product with an input don't read the input."""
    monkeypatch.setattr(pad_mm, "DEEP", 64 + 64 + 1)  # the input is multiplied in the forward and for a gradient
    x, first, second = (parameter(*sizes, dtype=torch.bfloat16) for sizes in ((96, 67), (67, 64), (64, 640)))
    function, graphs = compiled(lambda x: x @ first @ second, monkeypatch)
    function(x)
    assert 67 in sizes_of(products(graphs[0])[0])


@pytest.mark.parametrize("pads", [(0, 3), (0, 3, 0, 0), (1, 3), (0, 3, 0, 1), (0, -1)], ids=str)
@pytest.mark.parametrize("sizes", [(6, 33), (2, 3, 33), (1, 33), (2, 3, 4, 5)], ids=str)
def test_zeros_behind_rows(sizes, pads):
    def function(x):
        return F.pad(x.sigmoid() * x, pads), F.pad(x.sigmoid() * x, pads).square().sum(-1)

    x = torch.randn(sizes)
    found, expected = torch.compile(function, backend=reformer)(x), function(x)
    torch.testing.assert_close(found, expected)
    assert [each.stride() for each in found] == [each.stride() for each in expected]
