"""Kernels generated for programs with transposed tensors (adjacent along lines, not columns), emulated."""

import ctypes

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from look_ups import looked_up, looking_up
from marks import slow
from placements import TURNED, TURNED_TWICE, in_sizes, placed, placed_programs, placed_tensors, written_like
from test_stitch import CHANNEL, FULL, acc_for, programs, tensors_for

import emulator
from emulator.stitching import planner, source, stitch
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret

pytestmark = emulator.needed

WARPS = (32, 64)
# Whole vectors, sizes of one, odd sizes, and several tiles along each side.
SIZES = [(2, 24, 4, 8), (1, 40, 8, 40), *slow((3, 7, 3, 5), (1, 12, 1, 1), (2, 264, 2, 2), (1, 72, 33, 64))]
KEY = torch.tensor(-987654321987654321)


def given_to(tested, size, dtype, way):
    """The program's inputs, once dense and once with the full-size ones transposed in this way."""
    dense = {name: tensor for name, tensor in tensors_for(size, dtype, "nhwc").items() if name in tested.inputs}
    dense |= {"key": KEY} if "key" in tested.inputs else {}
    full = {"half", "mask", "full"}
    turned = {name: placed(tensor, TURNED[way](size)) if name in full else tensor for name, tensor in dense.items()}
    tensors = [dense[name] for name in tested.inputs]
    is_full = [name in full for name in tested.inputs]
    tensors = [
        each.contiguous(memory_format=torch.channels_last) if whole else each
        for each, whole in zip(tensors, is_full, strict=True)
    ]
    return tensors, [turned[name] for name in tested.inputs]


def is_turned(size):
    """True if the sizes can be transposed: channels of images of one position are adjacent in either order."""
    return size[2] * size[3] > 1


def check(tested, size, dtype, way, warp, outputs=()):
    """Compare results for transposed tensors with those for dense ones (bit by bit where nothing is added up) and with
    the plain interpreter.

    outputs: numbers of the outputs that are transposed, too.
    """
    acc = acc_for(size, dtype, "nhwc")
    tensors, turned = given_to(tested, size, dtype, way)
    into = {i: written_like(TURNED[way](size), tested.outputs[i].dtype or dtype) for i in outputs}
    actual = stitch(tested, acc, turned, into=dict(into), warp=warp)
    assert planner().is_of_tiles() or not is_turned(size) or not (outputs or any(each.dim() > 4 for each in turned))
    expected = stitch(tested, acc, tensors, warp=warp)
    wide = {
        name: each.double() if each.is_floating_point() else each
        for name, each in zip(tested.inputs, tensors, strict=True)
    }
    exact = interpret(tested, size, torch.float64, wide, acc.double())
    count = size[0] * size[1] * size[2] * size[3]
    for i, (output, one, other, right) in enumerate(zip(tested.outputs, actual, expected, exact, strict=True)):
        one = in_sizes(one, size) if i in outputs else one
        if output.kind == "store":
            assert torch.equal(one, other)
        torch.testing.assert_close(one.double(), right.to(one.dtype).double(), rtol=1e-2, atol=4e-6 * count + 1e-2)
    for memory in into.values():  # nothing is written around the output
        everything = memory.as_strided((memory.untyped_storage().size() // memory.itemsize,), (1,), 0)
        assert memory.dtype == torch.bool or everything.isnan().sum() == everything.numel() - count


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("way", TURNED_TWICE)
@pytest.mark.parametrize("size", [(2, 24, 4, 8), (1, 72, 33, 4), *slow((3, 6, 3, 5), (2, 264, 2, 2))], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float32)], ids=str)
def test_channels_that_repeat(dtype, size, way, warp):
    """Bit by bit as if they were copied, where nothing is added up."""
    for tested in placed_programs()[1:]:  # without reductions of rows
        acc, dense, turned = placed_tensors(tested, size, dtype, way)
        actual = stitch(tested, acc, turned, warp=warp)
        assert planner().is_of_tiles() or "full" not in tested.inputs
        for output, one, other in zip(tested.outputs, actual, stitch(tested, acc, dense, warp=warp), strict=True):
            rounding = 0 if output.kind == "store" else 1e-5
            torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("way", TURNED)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float32)], ids=str)
def test_inputs_and_outputs(dtype, size, way):
    half, row, plane = program.full("half"), program.row("row"), program.plane("plane")
    value = program.acc() * CHANNEL + program.select(program.full("mask"), half, FULL) * plane - row
    tested = Program(
        program.store(value),
        program.store(program.acc() > half, torch.bool),
        program.store(value / 2, torch.float32),
        program.store(value * 3),
    )
    for outputs, warp in (((), 32), ((0, 2), 64), ((1, 3), 32)):
        check(tested, size, dtype, way, warp, outputs)


@pytest.mark.parametrize("way", TURNED)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float32)], ids=str)
def test_reductions(dtype, size, way):
    value = program.acc() * CHANNEL + FULL
    kinds = [
        kind(value, per) for kind in (program.sum, program.max, program.moments) for per in ("channel", "plane", "all")
    ]
    check(Program(program.store(program.relu(value)), *kinds), size, dtype, way, 32, (0,))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_random_numbers_are_those_of_a_place(size):
    value = program.select(program.random("key") < 0.5, 0, FULL)
    check(Program(program.store(value), program.store(program.random("key"))), size, torch.float32, "turned", 32, (1,))


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_are_looked_up(size, index):
    tested = looking_up()["tables"]
    acc, tensors = looked_up(tested, size, torch.bfloat16, index)
    into = {0: written_like(TURNED["turned"](size), torch.bfloat16)}
    actual, of_turned = stitch(tested, acc, [*tensors.values()], into=into)
    assert bool(planner().is_of_tiles()) == is_turned(size)
    expected, moments = stitch(tested, acc, [*tensors.values()])
    assert not planner().is_of_tiles()
    assert torch.equal(in_sizes(actual, size), expected)
    torch.testing.assert_close(of_turned, moments, rtol=1e-4, atol=1e-3)


@emulator.without_sanitizers
@settings(max_examples=examples(8))
@given(
    programs(per=("channel", "plane", "all"), types=(None, torch.float16)),
    st.sampled_from([(2, 24, 4, 8), (3, 7, 3, 5), (1, 16, 7, 7), (2, 8, 1, 1)]),
    st.sampled_from([*TURNED]),
    st.sampled_from(WARPS),
)
def test_random_programs(tested, size, way, warp):
    stored = [i for i, each in enumerate(tested.outputs) if each.is_by_element and each.dtype != torch.bool]
    check(tested, size, torch.float32, way, warp, stored[:1])


@pytest.mark.parametrize("written", ["columns", "lines"])
def test_a_channel_shuffle_has_a_tile_a_thread(written):
    """Blocks of the same lines follow one another, in one dimension of the grid; with a sum a thread has two tiles."""
    lines, width = 128 * 244, 28 * 28
    acc = torch.empty((1, width, lines, 1), dtype=torch.bfloat16, device="meta")
    acc = acc.contiguous(memory_format=torch.channels_last)
    channels_last = (1, 1, 128, 244, width), (0, 0, 244 * width, 1, 244)
    shuffled = (1, 128, 2, 122, width), (0, 244 * width, width, 2 * width, 1)
    read, write = (channels_last, shuffled) if written == "columns" else (shuffled, channels_last)
    given, into = (torch.empty_strided(*each, dtype=torch.bfloat16, device="meta") for each in (read, write))
    stored = program.store(program.full("t"))
    elements = {}
    for tested in (Program(stored), Program(stored, program.sum(program.full("t"), "all"))):
        source(tested, acc, [given], 132, {0: into})
        shape = [(ctypes.c_uint32 * 5)() for _ in range(2)]
        planner().launches(*shape)
        x, y, _, threads, _ = shape[0]
        assert planner().is_of_tiles() and (y == 1 or len(tested.outputs) > 1)
        elements[len(tested.outputs)] = lines * width / (x * y * threads)
    assert 30 < elements[1] <= 32 and 60 < elements[2] <= 64
