"""Reductions are planned as programs: values and gradients of eager's, also of NaN, infinity and masks."""

import math

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten, slow

from torch_reformer.compiler.lowering import reductions

pytestmark = needs_aten
NAN, INF = math.nan, math.inf
ROWS = [[0.0, 1.0, -2.0], [0.0, 0.0, 0.0], [NAN, 0.0, 0.0], [INF, 1.0, -INF], [-1.0, -1.0, -3.0], [INF, NAN, 1.0]]
DIMS = {"rows": (1, False), "rows kept": (1, True), "columns": (0, False), "columns kept": (0, True)}
DIMS |= {"all": ((0, 1), False), "all kept": ((0, 1), True)}

REDUCTIONS = {
    "amax": torch.amax,
    "amin": torch.amin,
    "sum": torch.sum,
    "mean": torch.mean,
    "logsumexp": torch.logsumexp,
    "std": lambda x, dims, kept: torch.std(x, dims, keepdim=kept),
    "var": lambda x, dims, kept: torch.var(x, dims, correction=0, keepdim=kept),
    "any": torch.any,
    "all": torch.all,
    "any of a mask": lambda x, *args: (x > 0).any(*args),
    "all of a mask": lambda x, *args: (x >= 0).all(*args),
    "sum of a mask": lambda x, *args: (x > 0).sum(*args, dtype=x.dtype),
    "nansum": torch.nansum,
    **{f"norm {p}": lambda x, *args, p=p: torch.linalg.vector_norm(x, p, *args) for p in (INF, -INF, 1, 2, 3)},
    "norm 0": lambda x, *args: torch.linalg.vector_norm(x.detach(), 0, *args),
}


def numbers(dtype, name):
    rows = torch.tensor(ROWS, dtype=dtype)
    wide = torch.cat([rows, rows.flip(1)]).repeat(1, 5)
    return wide.nan_to_num(3.0, 4.0, -5.0) if name in ("logsumexp", "norm 3", "std") else wide


def outcome(function, x, compiled):
    reports = []
    x = x.clone().requires_grad_()
    result = (without_dynamo(function, reports.append) if compiled else function)(x)
    gradients = torch.autograd.grad(result.sum(), x) if result.requires_grad else ()
    return result.detach(), gradients, {line.kind for report in reports for line in report.lines}


@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.float64, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("over", ["rows", *slow("rows kept", "columns", "columns kept", "all", "all kept")])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_as_in_eager(name, over, dtype):
    x = numbers(dtype, name)

    def function(x):
        return REDUCTIONS[name](x, *DIMS[over])

    result, gradients, kinds = outcome(function, x, True)
    expected, theirs, _ = outcome(function, x, False)
    assert kinds == {"stitch"}
    tolerance = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 0.01}[dtype]
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    torch.testing.assert_close(gradients, theirs, rtol=2 * tolerance, atol=2 * tolerance, equal_nan=True)


@pytest.mark.parametrize("kept", [False, *slow(True)])
@pytest.mark.parametrize("dims", [(0, 2, 3), (2, 3), *slow((1,), (0, 1, 2, 3))], ids=str)
@pytest.mark.parametrize("name", ["std", "var", "mean", "amin", "any"])
def test_images(name, dims, kept):
    x = torch.randn(2, 3, 32, 32)
    if name == "any":
        x = torch.where(x > 3, x, 0)

    def function(x):
        return getattr(torch, name)(x, dims, keepdim=kept)

    result, gradients, kinds = outcome(function, x, True)
    expected, theirs, _ = outcome(function, x, False)
    torch.testing.assert_close((result, gradients), (expected, theirs))
    assert kinds == {"stitch"}


@pytest.mark.parametrize("name", ["max", "min", "any", "all", "std", "var"])
def test_everything(name):
    function, x = getattr(torch, name), torch.randn(40, 50)
    result, gradients, kinds = outcome(function, x, True)
    expected, theirs, _ = outcome(function, x, False)
    torch.testing.assert_close((result, gradients), (expected, theirs))
    assert kinds == {"stitch"}


def test_few_elements_and_integers_stay_with_pytorch():
    """Reductions of nothing, of one number and of integers."""
    for x in (torch.empty(0, 3), torch.empty(3, 0), torch.tensor(2.0), torch.tensor(math.nan)):
        for function in (torch.any, torch.all, torch.sum):
            torch.testing.assert_close(without_dynamo(function, lambda _: None)(x), function(x), equal_nan=True)
    x = torch.tensor([[2**24 + 1, 0], [0, 0]])
    for function in (torch.any, torch.all, torch.amin, torch.amax, torch.sum):
        assert torch.equal(
            without_dynamo(lambda x, function=function: function(x, 1), lambda _: None)(x), function(x, 1)
        )


def test_parts_and_transposed_tensors():
    x = torch.randn(6, 5, 40)
    for part in (lambda x: x[1:3], lambda x: x.transpose(0, 2), lambda x: x[:, 1], lambda x: x[0, 0].expand(4, 40)):
        for name in ("amin", "any", "all"):

            def function(x, part=part, name=name):
                return getattr(torch, name)(part(x), 1)

            assert torch.equal(without_dynamo(function, lambda _: None)(x), function(x))


def test_large_counts_are_integers(monkeypatch):
    monkeypatch.setattr(reductions, "MOST", 39)  # instead of 2**24
    x, reports = torch.randn(6, 40), []
    without_dynamo(lambda x: x / (x > 0).sum(1, keepdim=True), reports.append)(x)
    assert "aten::sum.dim_IntList" in {line.kind for report in reports for line in report.lines}


COUNTS = {
    "compared": lambda x: x * ((x > 0).sum(0) > 2),
    "a result": lambda x: (x / (n := (x > 0).sum(0)), n),
    "mean of what a mask has": lambda x: (x * (x > 0)).sum() / (x > 0).sum(),
    "count as a number": lambda x: x * (x > 0).sum(1, keepdim=True).float(),
    "views of counts": lambda x: x / (x > 0).sum(1)[:, None].expand(6, 40),
    "two readers": lambda x: (x / (x > 0).sum(), x.sum() * (x > 0).sum(0)),
}
INTEGERS = {  # that are read by operators which no program computes, or in a backward, where their range is not known
    "two types": lambda x: (x.double() * (n := (x > 0).sum(0)), x * n),
    "a power": lambda x: x.abs() ** (x > 0).sum(0),
    "of integers": lambda x: x * ((x > 0).sum(0) // 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", COUNTS | INTEGERS)
def test_counts(name, dtype):
    x = torch.randn(6, 40).to(dtype)
    outcomes, reports = [], []
    function = (COUNTS | INTEGERS)[name]
    for run in (function, without_dynamo(function, reports.append)):
        leaf = x.clone().requires_grad_()
        results = run(leaf)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        sum(result.sum().float() for result in results).backward()
        outcomes.append(([*map(torch.Tensor.detach, results)], leaf.grad))
    rtol = {torch.float32: 2e-6, torch.bfloat16: 0.02}[dtype]
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=rtol, atol=rtol)
    if name in COUNTS:
        assert {line.kind for report in reports for line in report.lines} == {"stitch"}
