"""Copies in another order of rows, which emulated kernels write, against eager."""

import math

import pytest
from marks import needs_aten, slow
from test_compiler_targets import FUNCTIONS, check, random

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]
FEW = ["rolled", "padded", "sums"]


@pytest.mark.parametrize("columns", [24, *slow(5, 96)])
@pytest.mark.parametrize("name", [*FEW, *slow(*(name for name in FUNCTIONS if name not in FEW))])
def test_values(name, columns):
    x = random(2, 8, 12, columns)
    x[0, 0, 0, 0], x[1, 7, 11, -1], x[1, 3, 3, 3] = math.nan, math.inf, -0.0
    with emulated(multiprocessors=2, seed=0):
        check(FUNCTIONS[name], x)
