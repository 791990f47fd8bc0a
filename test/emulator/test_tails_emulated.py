"""Rows whose end lies within the elements that a thread computes at once, emulated, against the plain interpreter."""

import functools

import pytest
import torch
from marks import slow
from placements import in_sizes
from test_stitch import FULL

import emulator
from emulator.stitching import planner, stitch
from emulator.tail_programs import OF_ROWS, call, labels, maps
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret

pytestmark = emulator.needed


def check(tested, size, group, dtype=torch.bfloat16, dense=(), rtol=1e-5, **options):
    """Compare the results, and check that nothing beside them is written.

    group: number of elements that a thread computes at once.
    """
    acc, tensors, into = call(tested, size, dtype, dense)
    actual = stitch(tested, acc, [*tensors.values()], into=into, **options)
    text = planner().source().decode()
    assert any(f"{layout}, {group}," in text for layout in ("nhwc", "RowInRegisters<Program", "LongRow<Program"))
    assert ", true)" in text or ", true>)" in text  # the kernel handles such ends of rows
    wide = {name: in_sizes(each, size) if each.dim() > 4 else each for name, each in tensors.items()}
    wide = {name: each.double() if each.is_floating_point() else each for name, each in wide.items()}
    exact = interpret(tested, size, torch.float64, wide, acc.double())
    for i, (one, other) in enumerate(zip(actual, exact, strict=True)):
        if i in into:
            pitch = one.stride(-2)
            rest = one.as_strided((size[0] * size[2] * size[3], pitch), (pitch, 1))[:, size[1] :]
            assert rest.all() if one.dtype == torch.bool else rest.isnan().all()
            one = in_sizes(one, size)
        rounding = torch.finfo(one.dtype).eps if one.dtype.is_floating_point else 0
        tolerance = {"rtol": rtol + rounding, "atol": rtol * max(8, size[1])}
        torch.testing.assert_close(one.double(), other.to(one.dtype).double(), **tolerance)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("size", [(2, 77, 3, 5), (1, 2053, 9, 2), *slow((3, 70, 4, 4), (1, 301, 40, 1))], ids=str)
@pytest.mark.parametrize("acc", [False, True])
def test_maps_and_sums_over_channels(acc, size, warp):
    check(maps(acc), size, 4 if acc else 8, warp=warp)


def test_of_fp32():
    check(maps(False), (1, 77, 7, 2), 4, torch.float32)


@pytest.mark.parametrize("label, group", [(FULL, 8), (program.acc(), 4)])
def test_labels(label, group):
    """Labels in bf16, and labels in fp32 for scores in bf16."""
    check(labels(label), (1, 1099, 12, 1), group, torch.bfloat16 if group == 8 else torch.float32)


def test_the_last_block_adds_up():
    """The last block also adds up elements behind the last whole group."""
    semaphores = torch.zeros(1024, dtype=torch.int32)
    tested = Program(program.store(FULL * 2), program.sum(FULL * program.channel("channel")))
    acc, tensors, into = call(tested, (1, 301, 400, 1), torch.bfloat16)
    run = functools.partial(stitch, tested, acc, [*tensors.values()], into=into, multiprocessors=7)
    _, sums = run(semaphores=semaphores)
    assert planner().semaphores() > 1 and not semaphores.any()
    torch.testing.assert_close(sums, run()[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dense", [("full",), ("half", "mask")])
def test_rows_that_are_not_aligned(dense):
    """Rows that are not aligned are read by narrow loads beside those that are."""
    check(maps(False), (2, 77, 3, 5), 4, dense=dense)


def test_planes():
    value = FULL * program.plane("plane")
    check(Program(program.store(value), program.sum(value, "plane"), program.sum(value)), (3, 77, 3, 5), 4)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("size", [(1, 77, 5, 1), (1, 1099, 3, 1), *slow((2, 301, 3, 2), (1, 4091, 3, 1))], ids=str)
@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_in_registers(name, size, warp):
    check(OF_ROWS[name], size, 8, rtol=2e-5, warp=warp)


# Shared memory has room for two rows, for one, or for none.
@pytest.mark.parametrize("shared_bytes", [160 << 10, 72 << 10, 16 << 10])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "classes"])
def test_rows_too_long_for_registers(name, shared_bytes):
    check(OF_ROWS[name], (1, 16387, 5, 1), 8, rtol=2e-5, shared_bytes=shared_bytes)


def test_long_rows_of_several_types():
    """Each row in shared memory begins at a vector's alignment."""
    above = program.select(program.full("mask"), program.full("half"), FULL)
    tested = Program(program.store(above - program.row_max(above) * program.row_sum(above) / program.columns()))
    for dense in ((), ("half",)):
        check(tested, (1, 16387, 3, 1), 4, torch.float32, dense, shared_bytes=160 << 10)
