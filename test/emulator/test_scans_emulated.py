"""Running sums and products along rows by the GPU's kernels, emulated, against eager."""

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten, slow
from scan_cases import CALLS, PROGRAMS, SPECIAL, numbers
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
    assert any("cum" in operation for _, operations in lines for operation in operations)


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    function, *args = CALLS[name]
    with emulated(multiprocessors=2, seed=0):
        lines = check(function, *args)
    assert not any("cum" in operation for _, operations in lines for operation in operations)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_special_values(name):
    def function(x):
        return getattr(torch, name)(x, 1), getattr(torch, name)(x.flip(1), 1).flip(1)

    with emulated(multiprocessors=2, seed=0), torch.no_grad():
        lines = check(function, SPECIAL)
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
