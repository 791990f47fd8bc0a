"""Kernels that gather rows of tables, emulated, against the plain interpreter."""

import pytest
import torch
from look_ups import looked_up, looking_up, plain
from marks import slow

import emulator
from emulator.stitching import stitch
from torch_reformer.program.interpreter import interpret

pytestmark = emulator.needed


# Rows within part of a warp, within several warps, and too long for registers.
@pytest.mark.parametrize("size", [(2, 24, 3, 5), (1, 264, 2, 3), (3, 7, 2, 2), *slow((2, 1024, 2, 2))], ids=str)
@pytest.mark.parametrize("name", looking_up())
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("pitch", [0, *slow(8, 3)])
def test_rows_are_looked_up(name, size, pitch, index):
    check(name, size, index, pitch)


@pytest.mark.parametrize("shared_bytes", [49152, 96 << 10], ids=["read again", "in shared memory"])
def test_long_rows_are_looked_up(shared_bytes):
    check("norm_of_tables", (2, 20480, 1, 2), torch.int64, 0, shared_bytes=shared_bytes)


def check(name, size, index, pitch, **options):
    tested = looking_up()[name]
    acc, tensors = looked_up(tested, size, torch.bfloat16, index, pitch)
    results = stitch(tested, acc, [*tensors.values()], **options)
    wide = {name: each.double() if each.is_floating_point() else each for name, each in plain(tensors, size).items()}
    for result, exact in zip(results, interpret(tested, size, torch.float64, wide, acc.double()), strict=True):
        rounding = 2.0**-8 if result.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(result.double(), exact.double(), rtol=rounding, atol=1e-4)
