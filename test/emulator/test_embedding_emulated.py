"""Gradients of embeddings, emulated."""

import ctypes

import pytest
import torch
from marks import slow

import emulator
from emulator import plans

pytestmark = emulator.needed

TYPES = {torch.bfloat16: ("bf16", 8), torch.float16: ("fp16", 8), torch.float32: ("fp32", 4)}
IDS = {torch.int64: "int64", torch.int32: "int32"}
THREADS = 384


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("ids", "grad", "to")),
        *((name, ctypes.c_int32) for name in ("count", "rows", "columns")),
        ("padding", ctypes.c_int64),
        *((name, ctypes.c_bool) for name in ("by_frequency", "adds", "is_large")),
        *((name, ctypes.c_int32) for name in ("columns_each", "groups")),
        ("by_groups", ctypes.c_uint32 * 3),
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
    groups=7,
    chunks_each=1,
    warp=32,
    seed=0,
    is_large=False,
):
    """Gradient by `groups` blocks for the rows of each table, and blocks for `chunks_each` chunks of columns, at most
    two; a chunk is what a warp reads at once."""
    columns = grad.shape[1]
    name, adjacent = TYPES[grad.dtype]
    adjacent = 1 if columns % adjacent else adjacent
    result = torch.full((rows, columns), torch.nan, dtype=grad.dtype) if base is None else base.clone()
    pointers = [tensor.data_ptr() for tensor in (ids, grad, result)]
    columns_each = chunks_each * warp * adjacent
    count, rows_of_table = len(ids) // tables, rows // tables
    shift = (groups - 1).bit_length()
    divider = (ctypes.c_uint32 * 3)(groups, -(-(2 ** (31 + shift)) // groups), shift)
    options = padding, by_frequency, base is not None, is_large
    numbers = count, rows_of_table, columns, *options, columns_each, groups, divider
    emulator.launch(
        "csrc/hip/embedding/embedding.hip",
        f"embedding_grad_{name}_{IDS[ids.dtype]}_{adjacent}",
        grid=(tables * groups, -(-columns // columns_each), 1),
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
    check(ids[:30], columns, 100, dtype, padding=int(ids[0]), warp=warp)
    check(ids.int(), columns, 100, dtype, padding=int(ids[0]), by_frequency=True, warp=warp, chunks_each=2)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("count", [2500, 6000])
def test_frequent_ids(count, warp):
    """All warps share a row with many ids. Of 6000 ids, a block's list has no room for those of its rows, nor for those
    of one row: it goes on with fewer rows, down to that one."""
    ids = torch.randint(0, 40, (count,))
    ids[torch.rand(count) < 0.7] = 17
    for groups in (1, 2, 3):
        check(ids, 24, 40, warp=warp, groups=groups, seed=groups)
    check(ids, 24, 40, padding=17, by_frequency=True, warp=warp, groups=1)
    check(ids, 24, 40, by_frequency=True, warp=warp, groups=1)


def test_fewer_rows_at_a_time():
    """More ids than the list holds, of rows none of which has too many."""
    ids = torch.randint(0, 37, (5000,)).int()
    for groups in (1, 2):
        check(ids, 8, 37, groups=groups)


def test_a_warp_with_more_hits_than_its_place():
    """The first warp's ids are all of one block's rows, and those of the others of both blocks' alike."""
    ids = torch.randint(0, 40, (2400,))
    ids[: 2400 // (THREADS // 32)] &= ~1
    for seed in (0, 1):
        check(ids, 8, 40, groups=2, seed=seed)


def test_large_results():
    """Which are written around the second-level cache."""
    check(torch.randint(0, 50, (300,)), 24, 50, is_large=True)
    check(torch.randint(0, 50, (300,)), 24, 50, torch.float32, is_large=True)


def test_strange_ids():
    """Numbers that name no row, which forwards refuse, add nothing."""
    ids = torch.randint(0, 20, (300,))
    expected = gradient(ids[::2].contiguous(), torch.ones(150, 8), 20)
    ids[1::2] = torch.tensor([-1, 20, 2**40, 2**32 + 3, -(2**40)]).repeat(30)
    assert torch.equal(gradient(ids, torch.ones(300, 8), 20), expected)


def test_no_number_reaches_other_rows():
    ids, grad = torch.arange(300) % 60, torch.ones(300, 8)
    grad[7], grad[12, 3] = torch.nan, torch.inf
    actual, expected = gradient(ids, grad, 61), torch.zeros(61, 8).index_add(0, ids, grad)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_same_bits_in_every_order_of_threads():
    """The emulator's seed decides in which order blocks and threads run."""
    ids, grad = (torch.rand(3000) ** 4 * 200).long(), torch.randn(3000, 16)
    results = [gradient(ids, grad, 200, seed=seed) for seed in range(3)]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("count", [0, 1, 33])
def test_few_ids(count):
    check(torch.randint(0, 50, (count,)), 16, 50)


@pytest.mark.parametrize("warp", [32, *slow(64)])
def test_base(warp):
    ids, grad = torch.randint(0, 40, (300,)), torch.randint(-8, 9, (300, 24)).bfloat16()
    base = torch.randint(-8, 9, (50, 24)).bfloat16()
    expected = base.double().index_add(0, ids, grad.double())
    assert torch.equal(gradient(ids, grad, 50, base=base, warp=warp), expected.bfloat16())
    expected[7] = base[7]
    assert torch.equal(gradient(ids, grad, 50, base=base, padding=7, warp=warp), expected.bfloat16())


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("columns", [64, *slow(7)])
def test_tables(columns, warp):
    """Blocks look for their rows among the ids of their table only."""
    tables, rows, count = 5, 37, 50
    ids = torch.randint(0, rows, (tables, count), dtype=torch.int32)
    ids[2] = 11  # as many as a warp's list holds, and more
    ids = (ids + rows * torch.arange(tables)[:, None]).int().flatten()
    for groups in (3, 37):
        check(ids, columns, tables * rows, tables=tables, groups=groups, warp=warp)
    base = torch.randint(-8, 9, (tables * rows, columns)).bfloat16()
    grad = torch.randint(-8, 9, (len(ids), columns)).bfloat16()
    expected = base.float().index_add(0, ids, grad.float()).bfloat16()
    assert torch.equal(gradient(ids, grad, tables * rows, tables=tables, base=base, warp=warp), expected)


def launched(tables, count, rows, columns, dtype=torch.float32, wide=True, arch=b"sm_90"):
    """Blocks along x and y, blocks for the rows of a table, and columns of a block; or why no kernel supports it."""
    library = plans.library("embedding_launch")
    library.configure.restype = ctypes.c_char_p
    number = {dtype: number for dtype, number in plans.TYPES.values()}[dtype]
    found = (ctypes.c_int64 * 4)()
    reason = library.configure(arch, number, int(wide), (ctypes.c_int64 * 4)(tables, count, rows, columns), found)
    return list(found) if reason is None else reason.decode()


@pytest.mark.parametrize("arch", [b"sm_90", b"gfx942"])
@pytest.mark.parametrize("tables", [1, 64])
@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 5000), (300, 64), (50257, 768), (1 << 20, 7), (128256, 4096)])
def test_launch(rows, columns, tables, arch):
    """Blocks have all rows and columns, no more than the kernel can list, and nearly all run at once if they may."""
    for dtype in TYPES:
        x, y, groups, columns_each = launched(tables, 100, rows, columns, dtype, arch=arch)
        chunk = (32 if arch == b"sm_90" else 64) * (1 if columns % TYPES[dtype][1] else TYPES[dtype][1])
        assert x == tables * groups and 1 <= groups <= rows <= 1024 * groups
        assert columns_each * (y - 1) < columns <= columns_each * y
        assert columns_each <= 2 * chunk and columns_each % chunk == 0


def test_launch_in_one_wave():
    assert launched(1, 8192, 50257, 768) == [88, 3, 88, 256]  # two for each of 132 processors
    assert launched(1, 1 << 20, 50257, 768) == "there are too many ids"
    assert launched(1, 8, 2, 1 << 29) == "it is too large"
