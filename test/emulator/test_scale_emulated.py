"""Scaling in place, emulated."""

import ctypes
import struct

import pytest
import torch

import emulator

pytestmark = emulator.needed
NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


def scaled(values, factor, count, blocks, seed=0, warp=32):
    result = values.clone()
    pointers = [ctypes.c_void_p(each.data_ptr()).value for each in (factor, result)]
    emulator.launch(
        "csrc/hip/pointwise/scale.hip",
        f"scale_{NAMES[values.dtype]}_{NAMES[factor.dtype]}_{count}",
        grid=(blocks, 1, 1),
        threads=256,
        arguments=struct.pack("<QQqi4x", *pointers, values.numel(), blocks),
        seed=seed,
        warp=warp,
    )
    return result


@pytest.mark.parametrize("of_factor", NAMES, ids=str)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_scales(dtype, of_factor):
    torch.manual_seed(0)
    whole = 16 // dtype.itemsize
    for size, count, blocks in ((4096 + whole, whole, 3), (257, 1, 1), (1031, 1, 2)):
        values = torch.randn(size).to(dtype)
        for factor in (1.0, -0.5, torch.inf):
            factor = torch.tensor(factor, dtype=of_factor)
            for warp in (32, 64):
                result = scaled(values, factor, count, blocks, seed=size, warp=warp)
                assert torch.equal(result, (values.float() * factor.float()).to(dtype))


def test_one_leaves_all_as_it_is():
    """A factor of one leaves all elements as they are, including the bits of NaN."""
    values = torch.tensor([0x7FC1, 0xFFC2, 0x7F81] * 8, dtype=torch.int32).to(torch.int16)
    values = values.view(torch.bfloat16)
    result = scaled(values, torch.tensor(1.0), 8, 1)
    assert torch.equal(result.view(torch.int16), values.view(torch.int16))
