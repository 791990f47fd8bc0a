"""Gradients of tables with few rows, emulated, as they are launched on an H100, or on an MI300X for warps of 64."""

import ctypes

import pytest
import torch
from marks import slow

import emulator
from emulator import plans

pytestmark = emulator.needed

NUMBERS = {dtype: number for dtype, number in plans.TYPES.values()}
MOST_PARTS = 1 << 22
TYPES = [torch.bfloat16, *slow(torch.float16, torch.float32)]


def gradient(ids, grad, rows, *, padding=-1, base=None, warp=32, seed=0):
    """The gradient of a table, and how many blocks' tables were added up; or the reason why no kernel supports it.

    Args:
        grad: [entries, columns], in any strides.
    """
    library = plans.library("few_rows_launch")
    library.plan.restype = ctypes.c_char_p
    count, columns = grad.shape
    result = torch.full((rows, columns), torch.nan, dtype=grad.dtype) if base is None else base.clone()
    parts = torch.full((MOST_PARTS,), torch.nan)
    sizes = (ctypes.c_int64 * 6)(count, rows, columns, *grad.stride(), padding)
    pointers = (ctypes.c_void_p * 3)(*(tensor.data_ptr() for tensor in (ids, grad, result)))
    arguments = [(ctypes.c_char * size)() for size in (library.bytes(), library.add_bytes())]
    shapes = [(ctypes.c_uint32 * 4)() for _ in range(2)]
    names = [ctypes.create_string_buffer(48) for _ in range(2)]
    kinds = (
        b"sm_90" if warp == 32 else b"gfx942",
        NUMBERS[grad.dtype],
        int(ids.dtype == torch.int64),
        int(base is not None),
    )
    memory = ctypes.c_void_p(parts.data_ptr()), ctypes.c_int64(MOST_PARTS)
    sentence = library.plan(*kinds, sizes, pointers, *memory, *arguments, *shapes, *names)
    if sentence is not None:
        return sentence.decode()
    for encoded, shape, given in zip(names, shapes, arguments, strict=True):
        if name := encoded.value.decode():
            emulator.launch(
                f"csrc/hip/embedding/{'_'.join(name.split('_')[:2])}.hip",
                name,
                grid=(*shape[:2], 1),
                threads=shape[2],
                shared_bytes=shape[3],
                arguments=bytes(given),
                warp=warp,
                seed=seed,
            )
    return result, shapes[0][0]


def check(ids, columns, rows, dtype=torch.bfloat16, padding=-1, with_base=False, by_column=False, **options):
    """Compare with the exact sums, and return the number of blocks along the entries."""
    grad = torch.randint(-8, 9, (columns, len(ids))).to(dtype).t()  # their sums are exact in fp32
    grad = grad if by_column else grad.contiguous()
    base = torch.randint(-8, 9, (rows, columns)).to(dtype) if with_base else None
    wanted = (ids >= 0) & (ids < rows) & (ids != padding)
    expected = torch.zeros(rows, columns, dtype=torch.float64) if base is None else base.double()
    expected = expected.index_add(0, ids[wanted].long(), grad[wanted].double())
    actual, blocks = gradient(ids, grad, rows, padding=padding, base=base, **options)
    assert torch.equal(actual, expected.to(dtype))
    return blocks


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("sizes", [(32, 8), (169, 12), (5, 70), *slow((180, 33), (1, 1), (7, 768), (256, 3))])
def test_gradient(sizes, dtype, warp):
    rows, columns = sizes
    torch.manual_seed(rows)
    ids = torch.randint(0, rows, (4500,))
    for by_column in (False, True):
        assert check(ids, columns, rows, dtype, by_column=by_column, warp=warp, seed=by_column) > 1
    assert check(ids.int()[:7], columns, rows, dtype, padding=int(ids[0]), warp=warp) == 1
    check(ids.int(), columns, rows, dtype, with_base=True, warp=warp)
    check(ids[:7], columns, rows, dtype, with_base=True, warp=warp)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("sizes", [(732, 12), *slow((1024, 32))])
def test_more_rows(sizes, warp):
    """With many entries; so few of them fit shared memory that one column of the table may be a block's."""
    rows, columns = sizes
    ids = torch.randint(0, rows, (17000,)).int()
    for by_column in (False, True):
        assert check(ids, columns, rows, by_column=by_column, warp=warp) > 1
    assert gradient(ids[:16000], torch.ones(16000, columns), rows) == "the table is too large"


def test_frequent_and_strange_ids():
    """Nearly all entries of one row; and numbers that name none, which forwards refuse, add nothing."""
    ids = torch.full((3000,), 3)
    ids[::7] = torch.randint(0, 20, (429,))
    check(ids, 8, 20)
    ids[5::11] = torch.tensor([-1, 20, 2**40, -(2**40)]).repeat(69)[:273]
    check(ids, 8, 20, padding=4)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("same", [1, 2, 5, 40])
def test_same_rows_in_a_warp(same, warp):
    """Runs of entries of one row, which lanes of a warp add up before they add to the warp's column."""
    ids = torch.randint(0, 100, (3000,)).repeat_interleave(same)[:3000]
    ids[::13], ids[1::17] = 7, -1
    for dtype in (torch.bfloat16, torch.float32):
        assert check(ids, 5, 100, dtype, padding=9, by_column=True, warp=warp, seed=same) > 1


def test_nan_among_rows_in_a_warp():
    ids, grad = torch.randint(0, 60, (3, 800)), torch.ones(3, 800)
    grad[0, ids[0] == 4], grad[1, ids[1] == 5] = torch.nan, torch.inf
    for row_ids in ids:
        expected = torch.zeros(60, 3).index_add(0, row_ids, grad.t())
        actual, _ = gradient(row_ids, grad.t(), 60)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [0, 1, 33])
def test_few_ids(count):
    check(torch.randint(0, 90, (count,)), 3, 90, by_column=True)
    for with_base in (False, True):
        check(torch.randint(0, 50, (count,)), 16, 50, with_base=with_base)


@pytest.mark.parametrize("strides", [(0, 0), (0, 1), (1, 0), (3, 50)], ids=str)
def test_strides(strides):
    """Expanded gradients, and others that no program would make dense."""
    memory = torch.randint(-8, 9, (10000,)).float()
    grad = memory.as_strided((400, 9), strides)
    ids = torch.randint(0, 11, (400,))
    actual, _ = gradient(ids, grad, 11)
    assert torch.equal(actual, torch.zeros(11, 9).index_add(0, ids, grad))


def test_no_number_reaches_other_rows():
    ids = torch.tensor([0, 1, 2, 1]).repeat(300)
    grad = torch.ones(1200, 4)
    grad[1], grad[2], grad[5, 2] = torch.inf, torch.nan, -torch.inf
    actual, blocks = gradient(ids, grad, 4)
    expected = torch.zeros(4, 4).index_add(0, ids, grad)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert blocks > 1 and actual[0].tolist() == [300] * 4 and actual[1, 2].isnan()


def test_same_bits_in_every_order_of_threads():
    """The emulator's seed decides in which order blocks and threads run."""
    for rows, grad in ((30, torch.randn(5000, 10)), (100, torch.randn(10, 5000).t())):
        ids = torch.randint(0, rows, (5000,))
        results = [gradient(ids, grad, rows, seed=seed)[0] for seed in range(3)]
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("rows, columns, dtype", [(257, 2, torch.float32), (200, 200, torch.float32)], ids=str)
def test_is_refused(rows, columns, dtype):
    assert gradient(torch.zeros(9).int(), torch.ones(9, columns, dtype=dtype), rows) == "the table is too large"
