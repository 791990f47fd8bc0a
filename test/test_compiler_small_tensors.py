"""Tensors without dimensions, of one element or of none, in compiled graphs with gradients."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

pytestmark = needs_aten
NUMBER, ONE, NONE = torch.tensor(1.5, dtype=torch.float64), torch.ones(1, dtype=torch.float64), torch.ones(0)
EMPTY_ROWS = torch.ones(0, 3)
FIRST, FIRSTS = torch.tensor(0), torch.tensor([0])


def outcome(function, tensors):
    """The result, and the gradients of floating-point tensors."""
    tensors = [each.clone().requires_grad_(each.is_floating_point()) for each in tensors]
    result = function(*tensors)
    result.sum().backward()
    return [result.detach(), *(each.grad for each in tensors if each.requires_grad)]


def check(function, *tensors):
    torch._dynamo.reset()
    found = outcome(torch.compile(function, backend="reformer"), tensors)
    for one, other in zip(found, outcome(function, tensors), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


ROWS = {
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "sum": lambda x: x.sin().sum(-1, keepdim=True),
    "sum of no named dimensions": lambda x: x.sin().sum([]),
    "mean": lambda x: x.mean() * x,
    "amax": lambda x: x - x.amax(-1) if x.numel() else x.cos(),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: x / (x.norm() + 1),
}


@pytest.mark.parametrize("x", [NUMBER, ONE, NONE, NUMBER.bfloat16()], ids=["number", "one", "none", "bf16"])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, x):
    check(ROWS[name], x)


@pytest.mark.parametrize("x", [NUMBER, NONE, EMPTY_ROWS], ids=["number", "none", "rows"])
@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss])
def test_losses(loss, x):
    """The mean of no elements is nan, as in eager mode."""
    check(lambda x: loss(x * 3, x.detach()), x)


def test_a_number_for_each_element():
    """The tensors are so large that the gradient may be hoisted to the loss."""
    for function in (lambda x, y: x.expand_as(y), lambda x, y: (F.softmax(x, -1).expand_as(y) * y).sin()):
        check(function, NUMBER, torch.randn(100, 200, dtype=torch.float64))


INDEXED = {
    "index_select": lambda x, i: torch.index_select(x, 0, i).sin(),
    "index_copy": lambda x, i: torch.index_copy(x, 0, i, x * 2),
    "index_add": lambda x, i: torch.index_add(x, 0, i, x * 2),
    "index_reduce": lambda x, i: torch.index_reduce(x, 0, i, x * 2, "amax"),
    "gather": lambda x, i: torch.gather(x, 0, i),
    "scatter_add": lambda x, i: torch.scatter_add(x, 0, i, x * 2),
    "scatter_reduce": lambda x, i: torch.scatter_reduce(x, 0, i, x * 2, "prod"),
}


@pytest.mark.parametrize("x, i", [(NUMBER, FIRST), (ONE, FIRSTS)], ids=["number", "one"])
@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_indices(name, x, i):
    check(INDEXED[name], x, i)


IDS, OFFSETS = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 0, 3])
BAGS = {
    "sum": lambda w: F.embedding_bag(IDS, w, OFFSETS, mode="sum"),
    "rows": lambda w: F.embedding_bag(IDS.view(2, 3), w, mode="sum"),
    "last offset": lambda w: F.embedding_bag(IDS, w, torch.tensor([0, 0, 3, 6]), mode="sum", include_last_offset=True),
    "padding": lambda w: F.embedding_bag(IDS, w, OFFSETS, mode="sum", padding_idx=4),
    "weights": lambda w: F.embedding_bag(IDS, w, OFFSETS, mode="sum", per_sample_weights=w.flatten()[:6]),
    "no indices": lambda w: F.embedding_bag(IDS[:0], w, OFFSETS[:2], mode="sum"),
    "mean": lambda w: F.embedding_bag(IDS, w, OFFSETS, mode="mean"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", BAGS)
def test_bags(name, dtype):
    """In bf16, PyTorch's CPU kernel has other secondary results, beside the sums, than its fake tensors."""
    weights = (torch.arange(30).view(10, 3) / 8).to(dtype)
    check(BAGS[name], weights)
    with torch.no_grad():
        torch._dynamo.reset()
        assert torch.equal(torch.compile(BAGS[name], backend="reformer")(weights), BAGS[name](weights))
