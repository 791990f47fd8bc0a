"""Gradients of embeddings, emulated."""

import ctypes

import pytest
import torch
from marks import slow

import emulator

pytestmark = emulator.needed

TYPES = {torch.bfloat16: ("bf16", 8), torch.float16: ("fp16", 8), torch.float32: ("fp32", 4)}
IDS = {torch.int64: "int64", torch.int32: "int32"}
THREADS = 256


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ids", "grad", "to")),
        *((name, ctypes.c_int32) for name in ("count", "rows", "columns")),
        ("padding", ctypes.c_int64),
        *((name, ctypes.c_bool) for name in ("by_frequency", "adds")),
        *((name, ctypes.c_int32) for name in ("rows_each", "columns_each", "blocks_each")),
    ]


def gradient(
    ids,
    grad,
    rows,
    *,
    padding=-1,
    by_frequency=False,
    base=None,
    tables=1,
    rows_each=16,
    chunks_each=1,
    warp=32,
    seed=0,
):
    """Gradient by blocks of `rows_each` rows and `chunks_each` chunks of columns; a chunk is what a warp handles at
    once. The rows are those of so many tables."""
    columns = grad.shape[1]
    name, adjacent = TYPES[grad.dtype]
    adjacent = 1 if columns % adjacent else adjacent
    result = torch.full((rows, columns), torch.nan, dtype=grad.dtype) if base is None else base.clone()
    pointers = [tensor.data_ptr() for tensor in (ids, grad, result)]
    columns_each = chunks_each * warp * adjacent
    count, rows_of_table = len(ids) // tables, rows // tables
    blocks_each = -(-rows_of_table // rows_each)
    options = padding, by_frequency, base is not None
    numbers = count, rows_of_table, columns, *options, rows_each, columns_each, blocks_each
    emulator.launch(
        "csrc/hip/embedding/embedding.hip",
        f"embedding_grad_{name}_{IDS[ids.dtype]}_{adjacent}",
        grid=(tables * blocks_each, -(-columns // columns_each), 1),
        threads=THREADS,
        arguments=Arguments(*pointers, *numbers),
        seed=seed,
        warp=warp,
    )
    return result


def check(ids, columns, rows, dtype=torch.bfloat16, padding=-1, by_frequency=False, **options):
    grad = torch.randint(-8, 9, (len(ids), columns)).to(dtype)  # their sums are exact in fp32
    expected = torch.ops.aten.embedding_dense_backward(grad.double(), ids.long(), rows, padding, by_frequency)
    actual = gradient(ids, grad, rows, padding=padding, by_frequency=by_frequency, **options)
    if by_frequency:
        # ATen divides before it adds up, so a sum of 0 may be about 1e-16.
        torch.testing.assert_close(actual.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-14)
    else:
        assert torch.equal(actual, expected.to(dtype))


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float16, torch.float32)], ids=str)
@pytest.mark.parametrize("columns", [64, *slow(520, 7, 1)])
def test_gradient(columns, dtype, warp):
    torch.manual_seed(columns)
    ids = torch.randint(0, 100, (300,))
    for seed in (0, 1):
        check(ids, columns, 100, dtype, warp=warp, seed=seed)
    check(ids.int(), columns, 100, dtype, padding=int(ids[0]), by_frequency=True, warp=warp, chunks_each=2)


@pytest.mark.parametrize("warp", [32, *slow(64)])
def test_frequent_ids(warp):
    """More ids than a block's list holds: it goes on with fewer rows, down to one that all warps share."""
    ids = torch.randint(0, 40, (2500,))
    ids[torch.rand(2500) < 0.7] = 17
    for seed in (0, 1):
        check(ids, 24, 40, warp=warp, rows_each=40, seed=seed)
    check(ids, 24, 40, padding=17, by_frequency=True, warp=warp, rows_each=40)


@pytest.mark.parametrize("count", [0, 1, 33])
def test_few_ids(count):
    check(torch.randint(0, 50, (count,)), 16, 50)


@pytest.mark.parametrize("warp", [32, *slow(64)])
def test_base(warp):
    ids, grad = torch.randint(0, 40, (300,)), torch.randint(-8, 9, (300, 24)).bfloat16()
    base = torch.randint(-8, 9, (50, 24)).bfloat16()
    expected = base.double().index_add(0, ids, grad.double())
    assert torch.equal(gradient(ids, grad, 50, base=base, warp=warp), expected.bfloat16())


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("columns", [64, *slow(7)])
def test_tables(columns, warp):
    """Blocks look for their rows among the ids of their table only."""
    tables, rows, count = 5, 37, 50
    ids = torch.randint(0, rows, (tables, count), dtype=torch.int32)
    ids[2] = 11  # as many as a warp's list holds, and more
    ids = (ids + rows * torch.arange(tables)[:, None]).int().flatten()
    for rows_each in (16, 37):
        check(ids, columns, tables * rows, tables=tables, rows_each=rows_each, warp=warp)
    base = torch.randint(-8, 9, (tables * rows, columns)).bfloat16()
    grad = torch.randint(-8, 9, (len(ids), columns)).bfloat16()
    expected = base.float().index_add(0, ids, grad.float()).bfloat16()
    assert torch.equal(gradient(ids, grad, tables * rows, tables=tables, base=base, warp=warp), expected)
