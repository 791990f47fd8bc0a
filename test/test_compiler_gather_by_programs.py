"""Gathers of many narrow rows that others than programs read (passes/gather_by_programs.py), on a CPU."""

import importlib
import math

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten
from torch.nn import functional as F

gather_by_programs = importlib.import_module("torch_reformer.compiler.passes.gather_by_programs")  # not the pass
pytestmark = needs_aten


@pytest.fixture(autouse=True)
def on_cpus(monkeypatch):
    monkeypatch.setattr(gather_by_programs, "DEVICES", {"cpu", "cuda"})
    monkeypatch.setattr(gather_by_programs, "_LEAST_US", 0.3)


def by_a_product(table, index):
    rows = F.embedding(index, table).flatten(0, 1)
    return rows.t() @ rows


def as_a_result(table, index):
    rows = F.embedding(index, table)
    return rows, rows.exp()


@pytest.mark.parametrize("function", [by_a_product, as_a_result])
@pytest.mark.parametrize("rows, columns, count", [(40, 8, 600), (40, 8, 100), (40, 7, 600), (9, 68, 600)])
def test_narrow_rows(function, rows, columns, count):
    """Rows of 16 to 256 bytes, from so many on that their blocks take some time; NaN and gradients included."""
    generator = torch.Generator().manual_seed(0)
    table, index = torch.randn(rows, columns, generator=generator), torch.randint(rows, (2, count // 2))
    table[3, 1] = math.nan
    reports, results = [], []
    for run in (without_dynamo(function, reports.append), function):
        leaf = table.clone().requires_grad_()
        found = run(leaf, index)
        found = [found] if isinstance(found, torch.Tensor) else found
        (grad,) = torch.autograd.grad(sum(each.sum() for each in found), leaf)
        results.append([*found, grad])
    for ours, theirs in zip(*results, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-4, atol=1e-3)
    is_taken = columns == 8 and count == 600
    assert ("aten::embedding" in [line.kind for line in reports[0].lines]) != is_taken


def test_rows_that_nothing_reads_any_more(monkeypatch):
    """Columns are gathered instead (passes/gather_columns.py), whose pass comes first."""
    gather_columns = importlib.import_module("torch_reformer.compiler.passes.gather_columns")
    monkeypatch.setattr(gather_columns, "DEVICES", {"cpu", "cuda"})

    def function(table, index):
        bias = F.embedding(index, table).permute(2, 0, 1).contiguous()
        return torch.bmm(bias, bias.transpose(1, 2))

    table, index, reports = torch.randn(40, 8), torch.randint(40, (30, 20)), []
    with torch.no_grad():
        torch.testing.assert_close(without_dynamo(function, reports.append)(table, index), function(table, index))
    assert "aten::index_select" in [line.kind for line in reports[0].lines]


def test_what_only_programs_read_is_not_copied():
    reports = []
    with torch.no_grad():
        run = without_dynamo(lambda table, index: F.embedding(index, table).sin() + 1, reports.append)
        run(torch.randn(40, 8), torch.randint(40, (600,)))
    lines = [line for line in reports[0].lines if line.kind == "stitch"]
    assert len(lines) == 1 and "clone" not in lines[0].operations
