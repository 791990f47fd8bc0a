"""PyTorch's FlopCounterMode counts this package's operators as it counts its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import torch_reformer


def counted(function, *tensors) -> int:
    """FLOPs of forward and backward."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    with FlopCounterMode(display=False) as counter:
        function(*leaves).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("geometry", [(1, 0, 1), ((2, 1), (0, 1), (1, 2))], ids=str)
def test_convolutions_count_as_pytorchs(geometry):
    tensors = torch.randn(2, 4, 8, 9), torch.randn(6, 4, 3, 2), torch.randn(6)
    expected = counted(lambda *each: F.conv2d(*each, *geometry), *tensors)
    assert expected > 0
    assert counted(lambda *each: torch_reformer.conv2d(*each, *geometry), *tensors) == expected
    assert counted(lambda *each: torch_reformer.conv2d_act(*each, *geometry), *tensors) == expected
    stride, padding, dilation = geometry
    settings = {"training": True, "stride": stride, "padding": padding, "dilation": dilation}
    norm = None, None
    assert counted(lambda *each: torch_reformer.conv2d_batch_norm_act(*each, *norm, **settings), *tensors) == expected


def test_groups_in_each_direction():
    """PyTorch's own formula counts the gradient of a grouped weight as if it were dense."""
    x, w = torch.randn(2, 4, 8, 9), torch.randn(6, 2, 3, 3)
    forward = 2 * (2 * 6 * 6 * 7) * (2 * 3 * 3)
    assert counted(lambda *each: torch_reformer.conv2d(*each, groups=2), x, w) == 3 * forward


def test_linear_counts_as_pytorchs():
    tensors = torch.randn(5, 6, 7), torch.randn(3, 7), torch.randn(3)
    assert counted(torch_reformer.linear_act, *tensors) == counted(F.linear, *tensors) > 0


def test_converted_model_counts_as_before():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, padding=1))
    expected = counted(model, x := torch.randn(2, 3, 9, 9))
    torch_reformer.convert(model)
    assert counted(model, x) == expected > 0


def test_counter_imported_before_the_package():
    code = "import torch, torch.utils.flop_counter as counter, torch_reformer\n"
    code += "assert torch.ops.reformer.conv2d in counter.flop_registry"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=True, timeout=120)


def test_products_with_a_wider_result():
    """PyTorch's own formula takes the data type for the result's shape, and raises."""
    one, other = (torch.empty(size, device="meta", dtype=torch.bfloat16) for size in ((2, 3, 4), (2, 4, 5)))
    with FlopCounterMode(display=False) as counter:
        torch.bmm(one, other, out_dtype=torch.float32)
        torch.mm(one[0], other[0])
    assert counter.get_total_flops() == 2 * 3 * 3 * 4 * 5
