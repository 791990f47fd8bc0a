"""Compare the expected values of GPU tests with PyTorch in fp64."""

import random

import pytest
import torch

from torch_reformer import ConvProblem
from torch_reformer.tuning.exact import exact
from torch_reformer.tuning.workload import Workload


def _geometries(count: int):
    draw = random.Random(0)
    while count:
        groups, r, s = draw.choice([1, 1, 2, 3]), draw.randint(1, 4), draw.randint(1, 4)
        c, k = groups * draw.randint(1, 3), groups * draw.randint(1, 3)
        pads, strides, dilations = ([draw.randint(low, 2) for _ in "hw"] for low in (0, 1, 1))
        sizes = draw.randint(1, 3), c, draw.randint(4, 9), draw.randint(4, 9), k, r, s
        problem = ConvProblem(*sizes, *pads, *strides, *dilations, groups)
        if problem.out_h > 0 and problem.out_w > 0:
            yield problem
            count -= 1


@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_equals_pytorch(direction, layout):
    for geometry in _geometries(60):
        work = Workload(geometry.replace(direction=direction, layout=layout, bias=direction == "F"))
        torch.testing.assert_close(exact(work), work.double().torch(), rtol=1e-12, atol=1e-12)


def test_tf32_operands_have_11_bits():
    work = Workload(ConvProblem(1, 8, 16, 16, 8, 3, 3, layout="NHWC"))
    rounded = work.tf32()
    assert rounded.input.is_contiguous(memory_format=torch.channels_last)
    assert not (rounded.input.view(torch.int32) & 0x1FFF).any()
    torch.testing.assert_close(rounded.input, work.input, rtol=2**-11, atol=0)
    assert (rounded.input > work.input).any() and (rounded.input < work.input).any()
