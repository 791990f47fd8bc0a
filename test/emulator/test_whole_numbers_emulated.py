"""Whole numbers read and stored by the GPU's kernels, emulated: by rows, columns, transposed, and through maps."""

import pytest
import torch
from marks import needs_aten
from test_compiler_whole_numbers import PLACES_OF, check, digits_of_leaves
from whole_number_cases import CALLS, PLACES, PROGRAMS, edges

import emulator
from emulator.graphs import emulated
from emulator.stitching import stitch
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret

pytestmark = [needs_aten, emulator.needed]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    with emulated(multiprocessors=2, seed=0):
        kinds = check(*PROGRAMS[name])
    assert "stitch" in kinds


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    with emulated(multiprocessors=2, seed=0):
        check(*CALLS[name])


@pytest.mark.parametrize("name", PLACES_OF)
@pytest.mark.parametrize("of", ["ties", "NaN and infinities", "bf16"])
def test_places(name, of):
    with emulated(multiprocessors=3, seed=1):
        check(lambda x: PLACES_OF[name](x, -1), PLACES[of])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_digits_of_leaves(dtype, layout):
    tested, acc, tensors = digits_of_leaves(layout, dtype)
    results = stitch(tested, acc, [tensors[name] for name in tested.inputs])
    assert all(map(torch.equal, results, interpret(tested, acc.shape, acc.dtype, tensors)))


# Shared memory has room for a row of numbers, or for none.
@pytest.mark.parametrize("shared_bytes", [220 << 10, 16 << 10])
@pytest.mark.parametrize("read", [lambda i: i, lambda i: program.digit(i, 3) * 2], ids=["numbers", "digits"])
def test_rows_too_long_for_registers(read, shared_bytes):
    size = 1, 16392, 3, 1
    numbers = edges()[torch.arange(3 * 16392).view(1, 3, 1, 16392) % len(edges())].permute(0, 3, 1, 2)
    acc = torch.zeros(size).contiguous(memory_format=torch.channels_last)
    value = read(program.full("i"))
    tested = Program(program.store(value - program.row_max(program.minimum(value, 9))))
    (result,) = stitch(tested, acc, [numbers], shared_bytes=shared_bytes)
    assert torch.equal(result, interpret(tested, size, torch.float32, {"i": numbers})[0])
