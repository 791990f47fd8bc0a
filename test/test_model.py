"""The Γ-block and the transformer block: their claimed counts, and their formulas."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_reformer.selector.model import GammaBlock, TransformerBlock

WIDTH, HIDDEN, HEADS = 16, 40, 4
BLOCKS = {
    "gamma": partial(GammaBlock, WIDTH, HIDDEN),
    "transformer": partial(TransformerBlock, WIDTH, HIDDEN, HEADS),
}
MATRIX_PRODUCTS = {"gamma": 3, "transformer": 6}
LAYERS = {"gamma": ["qkv", "taps", "up", "down"], "transformer": ["qkv", "out", "up", "down"]}


@pytest.fixture(params=BLOCKS)
def name(request) -> str:
    return request.param


@pytest.fixture
def block(name, device):
    """A block with random parameters: a parameter that is zero could hide a mistake."""
    block = BLOCKS[name]().to(device)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.uniform_(-0.5, 0.5)
    return block


class MatrixProducts(TorchDispatchMode):
    """Counts the matrix products inside; fused attention is two."""

    OF = Counter(mm=1, addmm=1, bmm=1, baddbmm=1, matmul=1, linear=1, mv=1, addmv=1, dot=1, convolution=1)

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        called = op.overloadpacket.__name__
        self.count += 2 if called.startswith("_scaled_dot_product") else self.OF[called]
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("masked", [False, True])
def test_matrix_products(name, block, device, masked):
    x = torch.randn(2, 5, WIDTH, device=device)
    mask = torch.ones(2, 5, dtype=torch.bool, device=device) if masked else None
    with MatrixProducts() as seen:
        block(x, mask)
    assert seen.count == MATRIX_PRODUCTS[name]


def longest_chain(block: torch.nn.Module, result: torch.Tensor, source: torch.Tensor) -> list[str]:
    """The longest chain of learnable layers between source and result, by a walk over the autograd graph.

    A layer is a member of the block that owns parameters. A node of the graph applies it if one of the node's arguments
    depends on parameters of the layer and not on the source, and another one on the source. A layer that takes several
    nodes in a row (a product and a sum) is one link.
    """
    owner = {id(parameter): name.split(".")[0] for name, parameter in block.named_parameters()}
    chains: dict = {}  # node: a longest chain for each last link; empty if it doesn't depend on the source
    layers: dict = {}  # node that depends only on parameters: the layers that own them

    def visit(node):
        if node in chains:
            return
        chains[node], layers[node] = {}, set()
        if hasattr(node, "variable"):
            if node.variable is source:
                chains[node] = {"": []}
            else:
                layers[node] = {owner[id(node.variable)]}
            return
        inputs = [child for child, _ in node.next_functions if child is not None]
        for child in inputs:
            visit(child)
        from_source = [chain for child in inputs for chain in chains[child].values()]
        applied = set().union(*(layers[child] for child in inputs if not chains[child]))
        if not from_source:
            layers[node] = applied
        for chain in from_source:
            for layer in applied - set(chain[-1:]):
                chain = [*chain, layer]
            last = chain[-1] if chain else ""
            chains[node][last] = max(chains[node].get(last, []), chain, key=len)

    visit(result.grad_fn)
    return max(chains[result.grad_fn].values(), key=len)


def test_learnable_layers_in_depth(name, block, device):
    x = torch.randn(2, 5, WIDTH, device=device, requires_grad=True)
    assert longest_chain(block, block(x), x) == LAYERS[name]


def test_learnable_layers_are_counted_along_one_path():
    """The counter itself: parallel layers count once, successive ones add up."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(3, 3) for _ in range(3))

    net, x = Net(), torch.randn(2, 2, 3, requires_grad=True)
    assert longest_chain(net, net.a(x) + net.b(x), x) in (["a"], ["b"])
    assert longest_chain(net, net.c(net.a(x) * net.b(x)), x) in (["a", "c"], ["b", "c"])
    assert longest_chain(net, net.c(net.b(net.a(x).transpose(0, 1))) + x, x) == ["a", "b", "c"]


@pytest.mark.parametrize("length", [1, 2, 7])
def test_shape_and_type(block, device, length):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(3, length, WIDTH, device=device, dtype=dtype)
        result = block.to(dtype)(x)
        assert (result.shape, result.dtype, result.device) == (x.shape, x.dtype, x.device)


def test_padding_changes_nothing(block, device):
    block = block.double()
    texts = [torch.randn(length, WIDTH, device=device, dtype=torch.double) for length in (1, 3, 8, 5)]
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=1e3)
    mask = torch.arange(8, device=device) < torch.tensor([len(text) for text in texts], device=device)[:, None]
    for text, result in zip(texts, block(padded, mask), strict=True):
        torch.testing.assert_close(result[: len(text)], block(text[None])[0])


def test_padding_gets_no_gradient(block, device):
    x = torch.randn(1, 6, WIDTH, device=device, requires_grad=True)
    mask = torch.arange(6, device=device)[None] < 4
    block(x, mask)[mask].square().sum().backward()
    assert x.grad[mask].abs().min() > 0 and not x.grad[~mask].any()


def test_every_position_is_seen(block, device):
    """Each result depends on every position, even the farthest."""
    x = torch.randn(1, 9, WIDTH, device=device, dtype=torch.double)
    depends = torch.autograd.functional.jacobian(block.double(), x).abs().amax((2, 5))[0, :, 0]
    assert depends.shape == (9, 9) and depends.min() > 0


def test_gamma_against_loops(device):
    """The formula, position by position and channel by channel."""
    block = GammaBlock(WIDTH, HIDDEN).to(device).double()
    torch.nn.init.normal_(block.taps)
    x = torch.randn(1, 4, WIDTH, device=device, dtype=torch.double)
    q, k, v = block.qkv(torch.nn.functional.layer_norm(x, [WIDTH]))[0].split(WIDTH, -1)
    rows = []
    for i in range(4):
        row = q[i] * sum(k[j].exp() * v[j] for j in range(4)) / sum(k[j].exp() for j in range(4))
        for tap, j in zip(block.taps, (i - 1, i, i + 1), strict=True):
            row = row + (tap * v[j] if 0 <= j < 4 else 0)
        rows.append(row)
    expected = x[0] + block.down(block.up(torch.stack(rows)).relu())
    torch.testing.assert_close(block(x)[0], expected)


def test_gamma_first_position_alone(device):
    block = GammaBlock(WIDTH, HIDDEN).to(device).double()
    torch.nn.init.normal_(block.taps)
    x = torch.randn(3, 5, WIDTH, device=device, dtype=torch.double)
    mask = torch.arange(5, device=device) < torch.tensor([[1], [3], [5]], device=device)
    for given in (None, mask):
        torch.testing.assert_close(block(x, given, first=True), block(x, given)[:, :1])


def test_gradients(block, device):
    x = torch.randn(1, 3, WIDTH, device=device, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(block.double(), x)


def test_trains(name, device):
    """Learn to tell at each position whether the first position's first channel is positive."""
    block = BLOCKS[name](dropout=0.1).to(device)
    x = torch.randn(64, 6, WIDTH, device=device)
    x[:, 0] *= 3
    x[:, :, 1] = torch.arange(6, device=device) == 0  # marks the first position
    target = (x[:, :1, 0] > 0).float().expand(-1, 6)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2)
    losses = []
    for _ in range(100):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(block(x)[..., 2], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_heads_must_divide_width():
    with pytest.raises(ValueError, match="heads=3 does not divide width=16"):
        TransformerBlock(WIDTH, HIDDEN, 3)
