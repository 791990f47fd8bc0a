"""Copies to another memory format, emulated."""

import ctypes

import pytest
import torch
from marks import slow

import emulator
from emulator import plans

pytestmark = emulator.needed


def planner():
    loaded = plans.library("transpose_launch")
    loaded.plan.restype = ctypes.c_char_p
    return loaded


def contiguous(tensor, warp=32, seed=0):
    """The copy and the name of its kernel, or the reason why there is none."""
    result = torch.empty(tensor.shape, dtype=tensor.dtype).fill_(-1)
    numbers = [(ctypes.c_int64 * tensor.dim())(*each) for each in (tensor.shape, tensor.stride())]
    arguments = (ctypes.c_char * planner().bytes())()
    shape, name = (ctypes.c_uint32 * 4)(), ctypes.create_string_buffer(32)
    pointers = [ctypes.c_void_p(each.data_ptr()) for each in (tensor, result)]
    known = ctypes.c_int64(tensor.dim()), *pointers, tensor.itemsize
    sentence = planner().plan(*numbers, *known, arguments, shape, name)
    if sentence is not None:
        return sentence.decode()
    *grid, threads = shape
    name = name.value.decode()
    emulator.launch(
        "csrc/hip/copy/transpose.hip",
        name,
        grid=tuple(grid),
        threads=threads,
        arguments=bytes(arguments),
        seed=seed,
        warp=warp,
    )
    return result, name


# Sizes in memory order, and the order of the copy.
CASES = [
    ((2, 72, 40), (0, 2, 1), 8),
    ((3, 65, 8, 24), (0, 3, 1, 2), 8),
    ((2, 16, 30, 128), (1, 3, 0, 2), 1),
    ((70, 33), (1, 0), 1),
    ((2, 3, 40, 5, 16), (1, 4, 0, 3, 2), 8),
    ((2, 16, 5, 64, 8), (2, 4, 0, 3, 1), 8),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float32)], ids=str)
def test_transposes(dtype, case):
    size, order, adjacent = case
    tensor = torch.arange(torch.Size(size).numel()).remainder(251).to(dtype).view(size).permute(order)
    for warp in (32, 64):
        result, name = contiguous(tensor, warp, seed=warp)
        assert torch.equal(result, tensor)
    assert name == f"transpose_{8 * dtype.itemsize}_{1 if adjacent == 1 else adjacent * 2 // dtype.itemsize}"


def test_a_part_of_a_tensor():
    whole = torch.arange(4 * 24 * 80).remainder(251).to(torch.bfloat16).view(4, 24, 80)
    for part in (whole[:, 8:, 16:56], whole[1:, :, 1:]):
        result, _ = contiguous(part.transpose(1, 2))
        assert torch.equal(result, part.transpose(1, 2))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, 4, 5, dtype=torch.bfloat16),
        torch.ones(30, 40, dtype=torch.float64).t(),
        torch.ones(3, 40, dtype=torch.bfloat16).t(),
        torch.ones(8, 6, dtype=torch.bfloat16)[:, ::2].t(),
        torch.ones(2, 2, 2, 2, 2, 2, dtype=torch.bfloat16).permute(5, 3, 1, 4, 2, 0),
    ],
    ids=lambda each: str(tuple(each.shape)),
)
def test_is_refused(tensor):
    assert isinstance(contiguous(tensor), str)
