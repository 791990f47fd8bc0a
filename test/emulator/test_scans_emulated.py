"""Running sums and products along rows by the GPU's kernels, emulated, against eager."""

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten, slow
from scan_cases import CALLS, PROGRAMS, SPECIAL, both_ways, has_scans, numbers
from test_compiler_scans import TOLERANCES, check

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]


@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype):
    function, *args = PROGRAMS[name]
    args = [arg.to(dtype) if arg.is_floating_point() else arg for arg in args]
    with emulated(multiprocessors=2, seed=0):
        lines = check(function, *args, rtol=TOLERANCES[dtype])
    assert {kind for kind, _ in lines} == {"stitch"}
    assert has_scans(lines)


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    function, *args = CALLS[name]
    with emulated(multiprocessors=2, seed=0):
        assert not has_scans(check(function, *args))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_special_values(name):
    with emulated(multiprocessors=2, seed=0), torch.no_grad():
        lines = check(both_ways(name), SPECIAL)
    assert [kind for kind, _ in lines] == ["stitch"]


@pytest.mark.parametrize("width", [40, 1000])
def test_equal_bits_in_any_order_of_threads(width):
    results = []
    for seed in range(3):
        with emulated(multiprocessors=2, seed=seed), torch.no_grad():
            results.append(without_dynamo(lambda x: x.sin().cumsum(1).cumsum(1), [].append)(numbers(5, width)))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_rows_too_long_for_registers():
    with emulated(multiprocessors=2, seed=0), torch.no_grad():
        lines = check(lambda x: x.cumsum(1) * 2, numbers(3, 4104))
    assert "aten::cumsum" in {kind for kind, _ in lines}
