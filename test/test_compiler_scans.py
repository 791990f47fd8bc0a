"""Running sums and products along rows are planned as programs: values and gradients of eager's."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from against_eager import without_dynamo
from gpu_rules import as_on_gpus
from marks import needs_aten
from scan_cases import CALLS, PROGRAMS, SPECIAL, both_ways, has_scans, numbers
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torch_reformer.compiler.lowering import scans

pytestmark = needs_aten


def outcome(function, args, compiled: bool):
    """Results, gradients, and the operations of the plans' kernels and calls."""
    reports: list = []
    torch.manual_seed(0)
    args = [arg.clone().requires_grad_() if arg.is_floating_point() else arg for arg in args]
    results = tree_leaves((without_dynamo(function, reports.append) if compiled else function)(*args))
    roots = [result for result in results if result.requires_grad]
    leaves = [arg for arg in args if arg.requires_grad]
    grads = torch.autograd.grad(roots, leaves, list(map(torch.randn_like, roots))) if roots else ()
    lines = [(line.kind, line.operations) for report in reports for line in report.lines]
    return [*map(Tensor.detach, results), *grads], lines


def check(function, *args, rtol=1e-5) -> list[tuple[str, tuple[str, ...]]]:
    """Compare with eager; returns the lines of the plans."""
    found, lines = outcome(function, args, True)
    expected, _ = outcome(function, args, False)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        least = rtol * max(1.0, other.double().nan_to_num(0, 0, 0).abs().max().item() if other.numel() else 0)
        torch.testing.assert_close(one, other, rtol=rtol, atol=least, equal_nan=True)
    return lines


TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype):
    function, *args = PROGRAMS[name]
    args = [arg.to(dtype) if arg.is_floating_point() else arg for arg in args]
    lines = check(function, *args, rtol=TOLERANCES[dtype])
    assert {kind for kind, _ in lines} == {"stitch"}
    assert has_scans(lines)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu(name, dtype):
    function, *args = PROGRAMS[name]
    args = [arg.to("cuda", dtype if arg.is_floating_point() else arg.dtype) for arg in args]
    lines = check(function, *args, rtol=2 * TOLERANCES[dtype])
    assert {kind for kind, _ in lines} == {"stitch"}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    function, *args = CALLS[name]
    assert not has_scans(check(function, *args))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_special_values(name):
    """NaN and infinities reach the elements behind them, and no others."""
    with torch.no_grad():
        lines = check(both_ways(name), SPECIAL)
    assert [kind for kind, _ in lines] == ["stitch"]


def test_a_gradient_takes_one_kernel():
    """Both flips are in the running sum from the row's end."""
    for function in (lambda x: x.exp().cumsum(1), lambda x: (-x.exp()).cumsum(-1) * 2, lambda x: -x.cumsum(1).neg()):
        forward, backward = check(function, numbers(6, 40))
        assert "cumsum" in forward[1] and "cumsum reversed" in backward[1]


def test_equal_bits_each_time():
    x = numbers(64, 1000)
    run = without_dynamo(lambda x: x.sin().cumsum(1), [].append)
    assert torch.equal(run(x), run(x))


def test_sums_of_fp32_are_added_in_fp64():
    """As PyTorch's are on a CPU: each is the exact sum, rounded."""
    x = numbers(64, 2000)
    found = without_dynamo(lambda x: x.cumsum(1), [].append)(x)
    assert torch.equal(found, x.double().cumsum(1).float())


@pytest.mark.parametrize("most, is_planned", [(40, True), (39, False)])
def test_numbers_that_fp32_holds(monkeypatch, most, is_planned):
    monkeypatch.setattr(scans, "MOST", most)  # instead of 2**24
    lines = check(lambda x: (x > 0).cumsum(1) * x, numbers(6, 40))
    assert any("cumsum" in operations for _, operations in lines) == is_planned


def test_positions_are_whole_numbers_of_a_known_range():
    """What is made of them is computed by the same kernel."""
    ids = torch.randint(0, 3, (6, 40))
    lines = check(lambda ids: ((ids != 1).cumsum(1) * (ids != 1) + 1).long(), ids)
    assert [kind for kind, _ in lines] == ["stitch"]


def test_two_flips_are_none():
    """Also of negated elements; over other dimensions they stay."""
    x = numbers(4, 6, 40)
    assert [kind for kind, _ in check(lambda x: (-x.flip(1)).flip(1), x)][0] == "stitch"
    check(lambda x: x.flip(1).flip(2) + x.flip(0, 1).flip(1), x)
    check(lambda x: x.flip(0).flip(0), torch.tensor(2.0))
    (one,) = without_dynamo(lambda x: (x.flip(1).flip(1),), [].append)(x)
    assert one.data_ptr() != x.data_ptr() and torch.equal(one, x)


@pytest.mark.parametrize("rules", [contextlib.nullcontext, as_on_gpus])
def test_two_flips_of_whole_numbers(rules):
    """Numbers that fp32 has not, and types that programs do not store, stay as they are."""
    large = torch.tensor([[2**24 + 1, 5, -7], [2**53 + 1, -(2**62), 0]])
    with rules():
        for x in (large, large.int(), large.to(torch.uint8), large.to(torch.complex64), large.float(), large > 0):
            for function in (lambda x: x.flip(1).flip(1), lambda x: x[:, ::2].flip(1).flip(1)):
                assert torch.equal(without_dynamo(function, [].append)(x), function(x))


ZEROS = {
    "cumprod": lambda x: x.clamp(-1, 1).cumprod(1),
    "prod": lambda x: x.clamp(-1, 1).prod(1),
    "prod of many": lambda x: x.clamp(-1, 1).repeat(1, 100).prod(1),
    "two flips": lambda x: x.clamp(-1, 1).flip(1).neg().flip(1),
}


@pytest.mark.parametrize("rules", [contextlib.nullcontext, as_on_gpus])
@pytest.mark.parametrize("name", ZEROS)
def test_zeros_of_whole_numbers_have_no_sign(name, rules):
    def function(x):
        return 1 / ZEROS[name](x).float()

    x = torch.tensor([[-1, 0, 1, 1]] * 6)
    with rules():
        assert torch.equal(without_dynamo(function, [].append)(x), function(x))


def test_sums_that_overflow():
    """From there on they are infinite, and NaN after an infinite number of the other sign."""
    x = torch.full((6, 40), 3e38)
    x[2, 20] = -math.inf
    with torch.no_grad():
        ((kind, _),) = check(lambda x: x.cumsum(1), x)
    assert kind == "stitch"
