"""Sums of rows by segments, emulated."""

import ctypes

import pytest
import torch
from marks import slow

import emulator

pytestmark = emulator.needed

TYPES = {torch.bfloat16: ("bf16", 8), torch.float16: ("fp16", 8), torch.float32: ("fp32", 4)}
THREADS = 256


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "base", "order", "begins", "to")),
        *((name, ctypes.c_int32) for name in ("rows", "columns", "log_across", "columns_each")),
    ]


def summed(numbers, source, rows, base=None, *, chunks_each=1, warp=32, seed=0):
    """By blocks of so many chunks of columns, as a warp has at once."""
    columns = source.shape[1]
    name, count = TYPES[source.dtype]
    count = 1 if columns % count else count
    ordered, order = torch.sort(numbers, stable=True)
    begins = torch.searchsorted(ordered, torch.arange(rows + 1))
    result = torch.full((rows, columns), torch.nan, dtype=source.dtype)
    groups = -(-columns // count)
    log_across = (min(groups, warp) - 1).bit_length()
    columns_each = chunks_each * count << log_across
    pointers = [None if each is None else each.data_ptr() for each in (source, base, order, begins, result)]
    emulator.launch(
        "csrc/hip/kernels/segments.hip",
        f"segment_sum_{name}_{count}",
        grid=(-(-rows * warp // THREADS), -(-columns // columns_each), 1),
        threads=THREADS,
        arguments=Arguments(*pointers, rows, columns, log_across, columns_each),
        seed=seed,
        warp=warp,
    )
    return result


def check(numbers, columns, rows, dtype=torch.bfloat16, with_base=False, **options):
    source = torch.randint(-4, 5, (len(numbers), columns)).to(dtype)  # whose sums are exact in fp32
    base = torch.randint(-4, 5, (rows, columns)).to(dtype) if with_base else None
    expected = torch.zeros(rows, columns, dtype=torch.float64) if base is None else base.double()
    expected = expected.index_add(0, numbers, source.double())
    assert torch.equal(summed(numbers, source, rows, base, **options), expected.to(dtype))


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float16, torch.float32)], ids=str)
@pytest.mark.parametrize("columns", [64, 7, *slow(24, 520, 1)])
def test_sums(columns, dtype, warp):
    torch.manual_seed(columns)
    numbers = torch.randint(0, 60, (400,))
    for seed in (0, 1):
        check(numbers, columns, 61, dtype, warp=warp, seed=seed)
    check(numbers, columns, 61, dtype, with_base=True, warp=warp, chunks_each=2)


@pytest.mark.parametrize("warp", [32, *slow(64)])
def test_rows_of_many_entries(warp):
    """All warps of a block have a share."""
    numbers = torch.randint(0, 20, (3000,))
    numbers[torch.rand(3000) < 0.7] = 17
    for seed in (0, 1):
        check(numbers, 24, 20, with_base=bool(seed), warp=warp, seed=seed)


@pytest.mark.parametrize("count", [0, 1, 33])
def test_few_entries(count):
    check(torch.randint(0, 50, (count,)), 16, 50, with_base=count == 1)
