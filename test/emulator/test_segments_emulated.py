"""Sums of rows by segments, emulated."""

import ctypes

import pytest
import torch
from marks import slow

import emulator

pytestmark = emulator.needed

TYPES = {torch.bfloat16: ("bf16", 8), torch.float16: ("fp16", 8), torch.float32: ("fp32", 4)}
IDS = {torch.int64: "int64", torch.int32: "int32"}
THREADS, LONG = 256, 128


class SumArguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "base", "order", "begins", "factors", "to")),
        *((name, ctypes.c_int32) for name in ("rows", "columns", "log_across", "log_side", "columns_each")),
    ]


class NumbersArguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("index", "to")),
        *((name, ctypes.c_int32) for name in ("count", "rows", "count_each")),
        ("from_end", ctypes.c_bool),
    ]


class BeginsArguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("sorted", "wide_order", "order", "begins")),
        *((name, ctypes.c_int32) for name in ("entries", "rows")),
    ]


def launch_rows(name, count, arguments):
    file, grid = "csrc/hip/segment_reduce/sorted_rows.hip", (-(-count // THREADS), 1, 1)
    emulator.launch(file, name, grid=grid, threads=THREADS, arguments=arguments)


def segments(numbers, rows):
    """Order of the entries by segment, and the position at which each segment begins."""
    ordered, wide = torch.sort(numbers.int(), stable=True)
    order, begins = torch.empty_like(ordered), torch.full((rows + 1,), -1, dtype=torch.int32)
    pointers = [each.data_ptr() for each in (ordered, wide, order, begins)]
    launch_rows("segment_begins_int32", max(len(numbers), rows + 1), BeginsArguments(*pointers, len(numbers), rows))
    return order, begins


def summed(numbers, source, rows, base=None, factors=None, *, log_side=0, chunks_each=1, warp=32, seed=0):
    """Sums by blocks of `chunks_each` chunks of columns; a chunk is what a warp handles at once.

    log_side: logarithm of the number of source rows that a warp adds up side by side, if it has room.
    """
    columns = source.shape[1]
    name, count = TYPES[source.dtype]
    count = 1 if columns % count else count
    order, begins = segments(numbers, rows)
    result = torch.full((rows, columns), torch.nan, dtype=source.dtype)
    groups = -(-columns // count)
    log_across = (min(groups, warp) - 1).bit_length()
    log_side = min(log_side, warp.bit_length() - 1 - log_across)
    columns_each = chunks_each * count << log_across
    pointers = [None if each is None else each.data_ptr() for each in (source, base, order, begins, factors, result)]
    emulator.launch(
        "csrc/hip/segment_reduce/segments.hip",
        f"segment_sum_{name}_{count}",
        grid=(-(-rows // (THREADS >> log_across + log_side)), -(-columns // columns_each), 1),
        threads=THREADS,
        arguments=SumArguments(*pointers, rows, columns, log_across, log_side, columns_each),
        seed=seed,
        warp=warp,
    )
    return result


def check(numbers, columns, rows, dtype=torch.bfloat16, with_base=False, with_factors=False, **options):
    source = torch.randint(-4, 5, (len(numbers), columns)).to(dtype)  # their sums are exact in fp32
    base = torch.randint(-4, 5, (rows, columns)).to(dtype) if with_base else None
    factors = torch.randint(-2, 3, (len(numbers),)).to(dtype) if with_factors else None
    expected = torch.zeros(rows, columns, dtype=torch.float64) if base is None else base.double()
    messages = source.double() if factors is None else source.double() * factors.double()[:, None]
    expected = expected.index_add(0, numbers, messages)
    if factors is not None:
        factors = factors[torch.sort(numbers, stable=True)[1]]
    assert torch.equal(summed(numbers, source, rows, base, factors, **options), expected.to(dtype))


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float16, torch.float32)], ids=str)
@pytest.mark.parametrize("columns", [64, 7, *slow(24, 520, 1)])
def test_sums(columns, dtype, warp):
    torch.manual_seed(columns)
    numbers = torch.randint(0, 60, (400,))
    for seed in (0, 1):
        check(numbers, columns, 61, dtype, warp=warp, seed=seed, log_side=seed, with_factors=bool(seed))
    check(numbers, columns, 61, dtype, with_base=True, warp=warp, chunks_each=2, log_side=6)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("log_side", [0, 6])
def test_rows_of_many_entries(log_side, warp):
    """All warps of a block share a row of many entries; also rows of just so many entries that they are not shared."""
    many = LONG << log_side if log_side == 0 else LONG * 8
    numbers = torch.cat([torch.randint(0, 17, (500,)), *(torch.full((many + r,), 17 + r) for r in range(3))])
    numbers = numbers[torch.randperm(len(numbers))]
    for seed in (0, 1):
        options = {"with_base": bool(seed), "with_factors": not seed, "log_side": log_side}
        check(numbers, 24, 20, warp=warp, seed=seed, **options)


@pytest.mark.parametrize("count", [0, 1, 33])
def test_few_entries(count):
    check(torch.randint(0, 50, (count,)), 16, 50, with_base=count == 1)


@pytest.mark.parametrize("dtype", IDS, ids=str)
@pytest.mark.parametrize("from_end", [False, True])
def test_numbers_of_rows(dtype, from_end):
    index = torch.randint(-30 if from_end else 0, 30, (1500,), dtype=dtype)
    result = torch.full(index.shape, -1, dtype=torch.int32)
    for tables in (1, 6):
        arguments = NumbersArguments(index.data_ptr(), result.data_ptr(), 1500, 30, 1500 // tables, from_end)
        launch_rows(f"row_numbers_{IDS[dtype]}", len(index), arguments)
        assert torch.equal(result, (index % 30 + torch.arange(1500) // (1500 // tables) * 30).int())
