"""Pads by a constant (lowering/constant_pad.py)."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


def check(function, *tensors):
    """Compare the result and the gradients with eager mode's; return the calls that the plans have, and the result."""
    torch._dynamo.reset()
    reports = []
    compiled = torch.compile(function, backend=reformer, options={"report": reports.append})
    results = []
    for run in (compiled, function):
        given = [each.detach().requires_grad_() if each.is_floating_point() else each for each in tensors]
        result = run(*given)
        wanted = [each for each in given if each.requires_grad]
        grads = torch.autograd.grad(result.square().sum(), wanted) if result.requires_grad else ()
        results.append([result, *grads])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-13)
    assert results[0][0].stride() == results[1][0].stride()
    return [word for report in reports for word in str(report).split() if word.startswith("aten::")], results[0][0]


IMAGES = torch.randn(2, 3, 6, 5, dtype=torch.float64)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("pads", [[0, 0], [0] * 8, [-1, 0], [-1, -2, 0, -3], [0, 0, 0, 0, -1, -1]], ids=str)
def test_pads_of_nothing_and_crops_are_no_calls(pads, format):
    """As Swin's, which pads images to multiples of its windows."""
    images = IMAGES.to(memory_format=format)

    def function(x):
        return F.pad(x.tanh(), pads) * 2

    if any(pads):  # the gradient is a pad of something
        with torch.no_grad():
            calls, _ = check(lambda x: function(x).detach(), images)
    else:
        calls, _ = check(function, images)
    assert not calls


def test_a_result_shares_no_memory_with_an_input():
    x = torch.randn(3, 4)
    result = torch.compile(lambda x: F.pad(x, [0, 0]), backend=reformer)(x)
    assert torch.equal(result, x) and result.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_other_data_types(dtype):
    x = torch.randint(2, (3, 4)).to(dtype)
    compiled = torch.compile(lambda x: F.pad(x, [-1, 0, 0, 0]), backend=reformer)
    assert torch.equal(compiled(x), x[:, 1:])
