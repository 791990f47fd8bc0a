"""Copies that kernels turn themselves. On CPUs they are made; here programs there read and write what is turned."""

import pytest
import torch.nn.functional as F
from marks import needs_aten
from test_compiler_image_orders import COPY, check, counts, images, randn

from torch_reformer.compiler import turns

pytestmark = needs_aten


@pytest.fixture
def turned(monkeypatch):
    monkeypatch.setattr(turns, "DEVICES", ("cpu",))


def norm(x, scale, shift):
    """As PyTorch computes it on GPUs: of images in their dimensions' own order."""
    return F.silu(F.group_norm(x, 2, scale, shift)).contiguous()


FUNCTIONS = {
    "group norm": (norm, lambda: (images(2, 8, 4, 4), randn(8), randn(8))),
    "of both orders": (
        lambda x, y: (x * y).sigmoid().contiguous() + y,
        lambda: (images(2, 8, 4, 4), randn(2, 8, 4, 4)),
    ),
    "two turned": (lambda x, y, z: x * y + z * x, lambda: (images(2, 8, 4, 4), randn(2, 8, 4, 4), randn(2, 8, 4, 4))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_copies(name, turned):
    function, tensors = FUNCTIONS[name]
    reports = []
    check(function, tensors(), reports)
    assert counts(reports, COPY) == [0, 0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cpus_copy(name):
    function, tensors = FUNCTIONS[name]
    reports = []
    check(function, tensors(), reports)
    assert sum(counts(reports, COPY))


def test_rows_are_copied(turned):
    """A kernel of rows reads and writes none that are turned: y and the result are copied, each once."""
    reports = []

    def function(x, y):
        z = x * y
        return (z.permute(0, 2, 3, 1).softmax(-1).permute(0, 3, 1, 2) + z).contiguous()

    check(function, (images(2, 8, 4, 4), randn(2, 8, 4, 4)), reports)
    assert counts(reports, COPY) == [2, 0]


@pytest.mark.parametrize("size", [(2, 8, 3, 3), (2, 6, 4, 4), (2, 4, 4, 4)], ids=str)
def test_odd_ones_are_copied(size, turned):
    """Kernels would turn these a few elements at a time."""
    reports = []
    check(lambda x, y: x * y, (images(*size), randn(*size)), reports)
    assert sum(counts(reports, COPY))


@pytest.mark.parametrize("count", [3, 5])
def test_three_are_read_turned(count, turned):
    """AMD's GPUs have no registers for more."""
    reports = []

    def function(x, *others):
        return sum((x * each for each in others[1:]), x * others[0])

    check(function, (images(2, 8, 4, 4), *(randn(2, 8, 4, 4) for _ in range(count))), reports)
    assert counts(reports, COPY)[0] == count - 3
