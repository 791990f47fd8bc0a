"""Jagged tensors: the number that stands for their lengths is no size (compiler/runtime/static_sizes.py)."""

import pytest
import torch
from marks import needs_aten

pytestmark = [needs_aten, pytest.mark.filterwarnings("ignore:NestedTensor does not implement")]


def jagged(*lengths: int):
    parts = [torch.randn(length, 3, dtype=torch.float64, requires_grad=True) for length in lengths]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged), parts


@pytest.mark.parametrize("function", [lambda x: x.clone(), lambda x: (x * 2).sin() * x], ids=["copy", "chain"])
def test_results_and_gradients(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="reformer", fullgraph=True)
    for lengths in ((2, 3, 4), (5, 1), (2, 3, 4)):
        x, parts = jagged(*lengths)
        results = [run(x) for run in (compiled, function)]
        assert torch.equal(*(each.offsets() for each in results))
        torch.testing.assert_close(*(each.values() for each in results))
        gradients = [torch.autograd.grad(each.values().sum(), parts, retain_graph=True) for each in results]
        torch.testing.assert_close(*gradients)
