"""Copies in another order of rows, which the kernel that computes the rows writes (ir/targets.py)."""

import math
from collections.abc import Callable

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten, slow
from test_compiler_index_maps import on_cpus  # noqa: F401  used by all tests
from torch import Tensor
from torch.utils._pytree import tree_leaves
from window_cases import ONE_KERNEL, OTHERS

from torch_reformer.compiler.ir.access import access_of
from torch_reformer.compiler.ir.axis_map import AxisMap
from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.ir.targets import targets_of

pytestmark = needs_aten
FUNCTIONS = ONE_KERNEL | OTHERS


def results(function: Callable, x: Tensor) -> list[Tensor]:
    """Results and gradient of a function."""
    x = x.detach().requires_grad_()
    found = tree_leaves(function(x))
    weights = [
        torch.linspace(-1, 1, one.numel(), dtype=torch.float64).view(one.shape).to(one.dtype) if one.numel() else one
        for one in found
    ]
    return [*(one.detach() for one in found), *torch.autograd.grad(found, x, weights)]


def random(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def check(function: Callable, x: Tensor) -> list:
    """Compare results and gradient with those in fp64; returns the reports."""
    reports: list = []
    actual = results(without_dynamo(function, reports.append), x)
    for one, right in zip(actual, results(function, x.double()), strict=True):
        eps = 1e-2 if any(each.dtype == torch.bfloat16 for each in actual) else 2e-6
        largest = max(1, right.double().nan_to_num(0, 0, 0).abs().max().item()) if right.numel() else 1
        torch.testing.assert_close(one.double(), right.double(), rtol=eps, atol=eps * largest, equal_nan=True)
    return reports


@pytest.mark.parametrize("size", [(2, 8, 12, 16), *slow((1, 8, 12, 1), (3, 8, 12, 20), (1, 8, 12, 520))], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, size):
    check(FUNCTIONS[name], random(*size))


@pytest.mark.parametrize("name", ["rolled", "padded", "two orders", "sums"])
@pytest.mark.parametrize("size", [(0, 8, 12, 16), (2, 4, 4, 16), (1, 4, 4, 8)], ids=str)
def test_sizes(size, name):
    check(FUNCTIONS[name], random(*size))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name):
    """NaN and infinity reach only the rows that have them, and no zeros beside them."""
    x = random(2, 8, 12, 16)
    x[0, 0, 0, 0], x[1, 7, 11, 15], x[1, 3, 3, 3] = math.nan, math.inf, -0.0
    check(FUNCTIONS[name], x)


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    x, reports = random(2, 16, 24, 32), []
    actual = tree_leaves(without_dynamo(ONE_KERNEL[name], reports.append)(x))
    (line,) = reports[0].lines
    assert line.kind == "stitch"
    assert line.read == x.numel() * 4
    assert line.written == sum(one.numel() * one.itemsize for one in actual)


@pytest.mark.parametrize("name", ["padded by ones", "padded and changed", "much more"])
def test_copies_that_are_not_rows_and_zeros(name):
    reports: list = []
    without_dynamo(OTHERS[name], reports.append)(random(2, 8, 12, 16))
    assert len(reports[0].lines) == 2


def test_targets():
    """Rows of two elements: the second of three rows twice, the first nowhere, and zeros at the end."""
    axis_map = AxisMap.choosing(3, [1, 2, 1, -1])
    source, copy = Layout.row_major((5, 3, 2)), Layout.row_major((5, 4, 2))
    targets = targets_of(access_of(copy, source, [None, axis_map, None], 0.0), source.numel, copy.numel)
    assert targets.digits == ((1, 2, 1), (2, 3, 0), (6, 5, 8))
    assert targets.positions == ((2, 3, 1),)
    assert targets.places.rows == (((6, 0.0),), ((0, 1.0), (4, 1.0)), ((2, 1.0),))
    assert targets.have_zeros
    assert not targets.are_bijective


@pytest.mark.parametrize(
    ("axis_map", "fill", "dim"),
    [
        (AxisMap.of(2, [((0, 1.0), (1, 1.0))]), 0.0, 0),  # a sum
        (AxisMap.choosing(2, [0, -1]), 1.0, 0),  # ones beside the rows
        (AxisMap.choosing(2, [1, 0]), 0.0, 1),  # columns
        (AxisMap.choosing(2, [0] * 5), 0.0, 0),  # too many places of a row
    ],
    ids=["sum", "ones", "columns", "many"],
)
def test_no_targets(axis_map, fill, dim):
    source = Layout.row_major((2, 2))
    copy = Layout.row_major((len(axis_map.rows), 2) if dim == 0 else (2, 2))
    maps = [axis_map if d == dim else None for d in range(2)]
    assert targets_of(access_of(copy, source, maps, fill), source.numel, copy.numel) is None
