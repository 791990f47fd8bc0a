"""Kernels that read tensors through maps of their axes, emulated, against the exact elements."""

import pytest
import torch
from mapped import reading, ways
from marks import slow
from placements import TURNED, in_sizes, written_like
from test_mapped import case, with_full

import emulator
from emulator.stitching import planner, stitch
from torch_reformer.program.interpreter import interpret

pytestmark = emulator.needed
FEW = ["pad by ones", "taps", "taps, columns", "slice, columns"]
GROUPED = ["pairs, columns", "second of pairs, columns", "lines", "pad by ones, lines"]
FEW += ["few sums", "few sums, columns"]


# Vectors of columns, columns one by one, rows that end within a thread's columns, and several warps a row.
@pytest.mark.parametrize("size", [(2, 3, 4, 24), *slow((1, 2, 3, 5), (2, 1, 5, 20), (1, 2, 2, 520))], ids=str)
@pytest.mark.parametrize("kind", ["stored", "element-wise", "rows"])
@pytest.mark.parametrize("way", [*FEW, *GROUPED, *slow(*(way for way in ways(3, 4) if way not in FEW + GROUPED))])
@pytest.mark.parametrize(
    ("dtype", "warp"), [(torch.bfloat16, 32), pytest.param(torch.float32, 64, marks=pytest.mark.slow)]
)
def test_reads(dtype, warp, way, kind, size):
    leaf, tensors, acc, exact = case(way, size, dtype)
    tested = reading(leaf)[kind]
    results = stitch(tested, acc, [tensors[name] for name in tested.names], warp=warp)
    wide = interpret(with_full(tested), acc.shape, torch.float64, {"full": exact}, acc.double())
    for result, one in zip(results, wide, strict=True):
        eps = torch.finfo(result.dtype).eps if result.dtype == torch.bfloat16 else 3e-6
        torch.testing.assert_close(result.double(), one.to(result.dtype).double(), rtol=eps, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("size", [(2, 3, 4, 24), *slow((1, 4, 8, 40))], ids=str)
@pytest.mark.parametrize("turned", ["turned", *slow("turned, unaligned")])
@pytest.mark.parametrize("way", [*FEW, *slow(*GROUPED)])
def test_reads_and_writes_transposed(way, turned, size):
    """The results are bit by bit those that are not written transposed."""
    leaf, tensors, acc, _ = case(way, size, torch.bfloat16)
    tested = reading(leaf)["stored"]
    given = [tensors[name] for name in tested.names]
    expected = stitch(tested, acc, given)
    into = {0: written_like(TURNED[turned](acc.shape), torch.bfloat16)}
    first, second = stitch(tested, acc, given, into=into)
    assert planner().is_of_tiles()
    for result, one in zip((in_sizes(first, acc.shape), second), expected, strict=True):
        torch.testing.assert_close(result, one, rtol=0, atol=0, equal_nan=True)
