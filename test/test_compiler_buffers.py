"""Buffers of any size that a module changes: kernels write them in place, after all reads of their old values."""

import copy

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


class Buffers(nn.Module):
    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Buffer(torch.randn(24, 16, dtype=torch.float64))
        self.other = nn.Buffer(torch.randn(24, 16, dtype=torch.float64))
        self.count = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.change = change

    def forward(self, x):
        return self.change(self, x)


def moving(self, x):
    self.one.lerp_(x, 0.1)
    return self.one * 2


def counting(self, x):
    self.count += 1
    self.one.mul_(0.9).add_(x / self.count)
    return x + 1


def swapped(self, x):
    """Each becomes what the other was."""
    one = self.one + x
    self.one.copy_(self.other * 2)
    self.other.copy_(one)
    return one


def old_values_elsewhere(self, x):
    """Products, rows and transposed reads need the old values."""
    product = x @ self.one.t()
    softmax, shifted = self.one.softmax(-1), self.one.flip(0) + x
    self.one.add_(x)
    return product.sum() + softmax * shifted


def looked_up(self, x):
    """Rows of the old table, as of a codebook that is learned by moving averages."""
    rows = F.embedding(torch.arange(24, device=x.device).flip(0), self.one)
    self.one.mul_(0.5).add_(rows * x, alpha=0.5)
    return rows + x


def broadcast(self, x):
    self.one.copy_(x.sum(1, keepdim=True) + self.one[:1])
    return x


def transposed(self, x):
    self.one.copy_((x.t().exp() + self.other.t()).t())
    return x * 3


def twice(self, x):
    self.one.add_(x)
    self.one.mul_(2)
    self.other.add_(self.one)
    return self.one - self.other


def returned(self, x):
    self.one.mul_(x)
    return self.one.clone(), self.one.sum()


def copied_to_both(self, x):
    value = (self.one * x).sin()
    self.one.copy_(value)
    self.other.copy_(value)
    return x @ value.t()


def new_values_elsewhere(self, x):
    self.one.lerp_(x, 0.1)
    return x @ self.one.t(), self.one.softmax(-1).flip(0), self.one.cumsum(0)


CHANGES = [moving, counting, swapped, old_values_elsewhere, looked_up, broadcast, transposed, twice, returned]
CHANGES += [copied_to_both, new_values_elsewhere]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes(change):
    torch._dynamo.reset()
    one = Buffers(change)
    other = copy.deepcopy(one)
    compiled = torch.compile(other, backend=reformer)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(24, 16, dtype=torch.float64, requires_grad=True)
        with torch.set_grad_enabled(change in (counting, transposed)):  # others change what a backward would read
            torch.testing.assert_close(compiled(x), one(x))
        torch.testing.assert_close(list(other.buffers()), list(one.buffers()))


@pytest.mark.parametrize("change", [moving, new_values_elsewhere])
def test_buffers_are_written_in_place(change):
    torch._dynamo.reset()
    reports = []
    model = Buffers(change)
    with torch.no_grad():
        torch.compile(model, backend=lambda *args: reformer(*args, options={"report": reports.append}))(model.other)
    assert "copy_" not in str(reports[0])
