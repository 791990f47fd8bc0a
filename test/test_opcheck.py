"""PyTorch's own checks of a custom operator: schema, autograd registration, fake kernel, AOT dispatch."""

import pytest
import torch
from cases import STRIDES, Case, directions, ops, strided

SAMPLES = {
    "plain": (Case(), torch.float32, "contiguous"),
    "channels_last": (Case(), torch.float32, "channels_last"),
    "fp64 channels_last": (Case(), torch.float64, "channels_last"),
    "fp16": (Case(), torch.float16, "contiguous"),
    "bf16 channels_last": (Case(), torch.bfloat16, "channels_last"),
    "sliced": (Case(), torch.float32, "sliced"),
    "asymmetric": (Case(2, 4, 9, 8, 6, 3, 2, (1, 2), (2, 1), (1, 2), 2), torch.float32, "contiguous"),
    "depthwise": (Case(c=6, k=12, groups=6), torch.float32, "channels_last"),
    "1x1": (Case(c=16, r=1, s=1, stride=(2, 2)), torch.float32, "contiguous"),
    "one pixel": (Case(n=1, c=1, h=1, w=1, k=1, r=1, s=1), torch.float32, "contiguous"),
    "empty batch": (Case(n=0), torch.float32, "contiguous"),
    "empty batch channels_last": (Case(n=0), torch.float32, "channels_last"),
}
assert {how for *_, how in SAMPLES.values()} <= set(STRIDES)


def tensors(name, requires_grad):
    case, dtype, how = SAMPLES[name]
    sizes = case.input_size, case.weight_size, case.output_size
    x, w, y = (strided(torch.randn(size).to(dtype), how).requires_grad_(requires_grad) for size in sizes)
    return case, x, w, y, torch.randn(case.k).to(dtype).requires_grad_(requires_grad)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "grad"])
@pytest.mark.parametrize("name", SAMPLES)
def test_opcheck(name, requires_grad):
    case, x, w, y, bias = tensors(name, requires_grad)
    calls = {
        "F": (ops.conv2d, (x, w, bias, *case.geometry)),
        "B": (ops.conv2d_input_grad, (case.input_size, w, y, *case.geometry)),
        "W": (ops.conv2d_weight_grad, (case.weight_size, x, y, *case.geometry)),
    }
    assert calls.keys() == directions(case, x, w, y).keys()
    for op, arguments in calls.values():
        torch.library.opcheck(op.default, arguments)
    # A composite operator has no Autograd kernel of its own to be checked.
    torch.library.opcheck(ops.conv2d_bias_grad.default, (y,), test_utils=("test_schema", "test_faketensor"))


def test_opcheck_with_defaults():
    torch.library.opcheck(ops.conv2d.default, (torch.randn(2, 3, 5, 5, requires_grad=True), torch.randn(4, 3, 3, 3)))
