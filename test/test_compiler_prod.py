"""Products over dimensions are planned as programs: values and gradients of eager's."""

from __future__ import annotations

import pytest
import torch
from marks import needs_aten
from prod_cases import CALLS, PROGRAMS, near_one
from test_compiler_scans import TOLERANCES, check

from torch_reformer.compiler.lowering import reductions

pytestmark = needs_aten


def is_call(lines) -> bool:
    return any(kind.startswith("aten::prod") for kind, _ in lines)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype):
    function, x = PROGRAMS[name]
    lines = check(lambda x: function(x.detach()), x.to(dtype), rtol=TOLERANCES[dtype])
    if name != "truths as floats" or dtype != torch.float64:  # programs compute in one precision
        assert not is_call(lines)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu(name):
    function, x = PROGRAMS[name]
    assert not is_call(check(lambda x: function(x.detach()), x.cuda()))


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    function, x = CALLS[name]
    lines = check(lambda x: function(x.detach()), x)
    assert is_call(lines) or name == "nothing"
    assert not any("prod" in operation for _, operations in lines for operation in operations)


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_gradients(dim, zeros):
    """Also where factors are 0: the gradient is no quotient."""
    x = near_one(8, 40)
    x[3, :zeros] = 0
    x[5:, 7] *= torch.tensor([0.0, 1.0, 0.0])[:, None].squeeze(1) if zeros else 1
    check(lambda x: (x * 2 - x).prod() if dim is None else (x * 2 - x).prod(dim), x, rtol=1e-4)


@pytest.mark.parametrize("most, is_planned", [(256, True), (255, False)])
def test_numbers_that_fp32_holds(monkeypatch, most, is_planned):
    """Eight numbers of up to 2 have products of up to 256."""
    monkeypatch.setattr(reductions, "MOST", most)  # instead of 2**24
    lines = check(lambda x: ((x > 1).long() + 1).prod(1), near_one(6, 8))
    assert is_call(lines) != is_planned


def test_products_that_overflow_on_the_way():
    """Programs on CPUs multiply in fp64."""
    x = torch.full((6, 40), 1.0)
    x[:, 3], x[:, 8] = 1e30, 1e-30
    check(lambda x: x.prod(1), x)


@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
def test_elements_are_rounded_before(name):
    """To the type of the result, which has not all numbers of the other 16-bit type."""
    x = torch.tensor([[1e5, -1e5, 1e-9], [1, 2, 3]])
    for before, after in ((torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16), (torch.float32,) * 2):
        check(lambda x, after=after: getattr(x * 1, name)(1, dtype=after).detach(), x.to(before).detach(), rtol=0.01)


@pytest.mark.parametrize("name", ["prod", "cumprod"])
def test_sizes_of_symbols(name):
    torch._dynamo.reset()

    def function(x):
        return getattr((x > 0).long() * 2 + 1, name)(-1)

    compiled = torch.compile(function, backend="reformer", dynamic=True)
    for size in (3, 9, 30):
        x = near_one(5, size) - 1
        assert torch.equal(compiled(x), function(x))
