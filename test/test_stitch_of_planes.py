"""Programs with planes (all positions of an image's channel), on the CPU."""

import pytest
import torch
from test_stitch import CHANNEL, FORMATS, SIZES, check

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_planes_are_stored(dtype, layout):
    value = program.plane("plane") * CHANNEL + program.scalar("scalar")
    outputs = [program.store(value, to, "plane") for to in (None, torch.float32)]
    outputs.append(program.store(program.plane("plane") > 0, torch.bool, "plane"))
    for size in SIZES:
        check(Program(*outputs, program.store(program.acc() * value)), size, dtype, layout)


@pytest.mark.parametrize("layout", FORMATS)
def test_derivative_of_planes(layout):
    """Squeeze and excitation: a mean of each plane, and its product with the plane."""
    x = torch.randn(3, 5, 4, 6, dtype=torch.float64).contiguous(memory_format=FORMATS[layout]).requires_grad_()
    gate = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    tested = Program(program.store(program.acc() * program.plane("gate")), program.sum(program.acc(), "plane"))

    def function(x, gate):
        return torch_reformer.stitch(x, tested, {"gate": gate})

    result, sums = function(x, gate)
    torch.testing.assert_close(result, x * gate[:, :, None, None])
    torch.testing.assert_close(sums, x.sum((2, 3)))
    assert torch.autograd.gradcheck(function, (x, gate)) and torch.autograd.gradgradcheck(function, (x, gate))


def test_a_product_has_no_planes():
    tested = Program(program.store(program.acc() * program.plane("gate")))
    with pytest.raises(ValueError, match="has no planes or heights"):
        torch_reformer.linear_epilogue(torch.ones(4, 3), torch.ones(5, 3), tested, {"gate": torch.ones(4, 5)})


@pytest.mark.parametrize("layout", FORMATS)
def test_planes_behind_a_convolution(layout):
    x, weight = torch.randn(2, 3, 9, 9).contiguous(memory_format=FORMATS[layout]), torch.randn(16, 3, 3, 3)
    gate = torch.randn(2, 16)
    tested = Program(program.store(program.acc() * program.plane("gate")), program.sum(program.acc(), "plane"))
    result, sums = torch_reformer.conv2d_epilogue(x, weight, tested, {"gate": gate})
    expected = torch.conv2d(x, weight)
    torch.testing.assert_close(result, expected * gate[:, :, None, None], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums, expected.sum((2, 3)), rtol=1e-4, atol=1e-3)
