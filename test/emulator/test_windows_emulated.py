"""Programs that read windows through maps of axes, emulated, against eager's in fp64."""

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from marks import needs_aten

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]
FUNCTIONS = {
    "unfold": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "fold": lambda x: F.fold(x.reshape(2, 72, 9), (6, 6), 3, padding=1, stride=2),
    "windows of an axis": lambda x: x.unfold(2, 3, 2) * 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_windows(name):
    x = torch.randn(2, 8, 9, 9).contiguous(memory_format=torch.channels_last).bfloat16().requires_grad_()
    with emulated(2, 0):
        actual = without_dynamo(FUNCTIONS[name], lambda report: None)(x)
        grads = torch.randn_like(actual)
        (gradient,) = torch.autograd.grad(actual, x, grads)
    expected = FUNCTIONS[name](x.double())
    torch.testing.assert_close(actual, expected.bfloat16())
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x, grads.double())[0])
