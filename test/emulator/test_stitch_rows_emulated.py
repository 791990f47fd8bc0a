"""Programs with row reductions whose results the rest uses, emulated, against the plain interpreter."""

import math

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow
from test_stitch import WITHOUT_PLANES, programs

import emulator
from emulator.row_programs import PROGRAMS
from emulator.stitching import check
from torch_reformer import program
from torch_reformer.program import Program

pytestmark = emulator.needed

# Rows of odd widths: shorter than a warp's part, within one warp, within several, with groups past the end.
SIZES = [(1, 7, 5, 1), (3, 24, 2, 5), (2, 136, 3, 1), (1, 1096, 3, 1), *slow((1, 4096, 3, 1))]


@pytest.mark.parametrize("warp", [32, 64])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_rows(name, size, warp):
    for dtype in (torch.bfloat16, torch.float32):
        check(PROGRAMS[name], size, dtype, "nhwc", warp, rtol=2e-5, atol=3e-5 * max(8, size[1]), seed=warp)


# Shared memory has room for two rows, for one, or for none.
@pytest.mark.parametrize("shared_bytes", [160 << 10, 72 << 10, 16 << 10])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "classes"])
def test_rows_too_long_for_registers(name, shared_bytes):
    for width in (16386, 16400):
        options = {"shared_bytes": shared_bytes, "rtol": 2e-5, "atol": 1e-4}
        check(PROGRAMS[name], (1, width, 5, 1), torch.bfloat16, "nhwc", **options)


OVER = {"softmax": {0: "acc"}, "layer_norm": {0: "full", 1: "acc"}, "classes": {0: "acc"}}


@pytest.mark.parametrize("name, over", [*OVER.items(), ("layer_norm_backward", {0: "acc"})])
def test_rows_that_are_written_over(name, over):
    for size in SIZES[:3]:
        check(PROGRAMS[name], size, torch.bfloat16, "nhwc", over=over, rtol=2e-5, atol=3e-5 * max(8, size[1]))


# Rows in shared memory, and rows that are read again in each pass.
@pytest.mark.parametrize("shared_bytes", [160 << 10, 16 << 10])
@pytest.mark.parametrize("name", OVER)
def test_long_rows_that_are_written_over(name, shared_bytes):
    options = {"shared_bytes": shared_bytes, "rtol": 2e-5, "atol": 1e-4}
    check(PROGRAMS[name], (1, 16400, 5, 1), torch.bfloat16, "nhwc", over=OVER[name], **options)


def test_masks_of_rows_in_shared_memory():
    """Tensors with elements of several sizes stay in shared memory, each beginning at a vector's alignment."""
    above = program.select(program.full("mask"), program.full("half"), program.acc())
    tested = Program(program.store(above - program.row_max(above) * program.row_sum(above) / program.columns()))
    check(tested, (1, 16392, 3, 1), torch.float32, "nhwc", shared_bytes=160 << 10, rtol=2e-5, atol=1e-3)


@emulator.without_sanitizers
@settings(max_examples=examples(8))
@given(
    programs(
        per=("channel", "all", "height"),
        types=(None, torch.float16),
        kinds=("store", "store of rows", "store of channels", "sum", "max", "prod", "moments"),
        reduces_rows=True,
        leaves=WITHOUT_PLANES,
    ),
    st.sampled_from(SIZES[:4]),
    st.sampled_from([32, 64]),
)
def test_random_programs_that_reduce_rows(tested, size, warp):
    check(tested, size, torch.float32, "nhwc", warp, rtol=1e-5, atol=4e-6 * math.prod(size))
