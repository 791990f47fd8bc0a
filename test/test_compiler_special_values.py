"""NaN, infinity and zeros in sums, masks and quotients, and rows that are masked whole: as in eager mode, forward and
backward."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

pytestmark = needs_aten
INF, NAN = torch.inf, torch.nan
X = torch.tensor([[1.0, 0.0, 2.0, -1.0], [2.0, INF, -1.0, 3.0], [0.0, 0.0, -1.0, -2.0], [NAN, 1.0, -INF, 0.0]])
M = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
S = torch.tensor([0.0, INF, 2.0, NAN])
LABELS = torch.tensor([1, -100, 0, 3])


FUNCTIONS = {
    "softmax of masked rows": lambda x: F.softmax(x.masked_fill(M, -INF), -1).masked_fill(M, 0.0).sum(-1),
    "by the largest": lambda x: torch.where(M, 0.0, x / x.amax(-1, keepdim=True)).sum(-1),
    "times the largest": lambda x: torch.where(M, 0.0, x * x.amax(-1, keepdim=True)).sum(-1),
    "by the largest, all": lambda x: ((x - x.sum(-1, keepdim=True)) / x.amax(-1, keepdim=True)).sum(-1),
    "by the sum": lambda x: (lambda y: y / y.sum(-1, keepdim=True))(x.masked_fill(M, 0.0)).sum(-1),
    "columns by numbers": lambda x: (x / S).sum(0),
    "columns times numbers": lambda x: (-(x * S) * 3).sum(0),
    "columns where": lambda x: torch.where(M, 0.0, x / S).sum(0),
    "channels": lambda x: (x.expand(3, 2, 4, 4).permute(0, 3, 1, 2) / S.view(4, 1, 1)).sum((0, 2, 3)),
    "planes": lambda x: (x.view(2, 2, 4) * torch.tensor([[0.0, INF], [2.0, NAN]])[..., None]).sum(2),
    "a mean": lambda x: (x * S).mean(0),
    "cross entropy": lambda x: F.cross_entropy(x, LABELS, weight=torch.tensor([1.0, INF, 2.0, 0.0])),
    "smoothed": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.5, reduction="none"),
    "without labels": lambda x: F.cross_entropy(x, torch.full((4,), -100), reduction="sum"),
    "the least numbers": lambda x: F.log_softmax(x.nan_to_num() * 0 - 3.4e38, -1).masked_fill(M, 0.0).sum(-1),
    "products added to rows": lambda x: torch.zeros(3, 4).index_add(0, torch.tensor([0, 1, 1, 2]), x * S[:, None]),
}


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    """Where the cubic of the tanh form overflows its derivative is still 0 or 1. As in fp64: with AVX, PyTorch's fp32
    function of infinity is NaN."""
    torch._dynamo.reset()
    sizes = torch.logspace(-20, 18, 77)
    numbers = torch.cat([sizes, -sizes, torch.tensor([0.0, -0.0, INF, -INF, NAN])])

    def function(x):
        return F.gelu(x, approximate=approximate)

    results = []
    for x, each in ((numbers, torch.compile(function, backend="reformer")), (numbers.double(), function)):
        leaf = x.clone().requires_grad_()
        y = each(leaf)
        y.backward(torch.ones_like(y))
        results.append((y.detach().double(), leaf.grad.double()))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name):
    torch._dynamo.reset()
    results = []
    for function in (FUNCTIONS[name], torch.compile(FUNCTIONS[name], backend="reformer")):
        x = X.clone().requires_grad_()
        y = function(x)
        y.backward(torch.ones_like(y))
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(*results, equal_nan=True)
