"""Whole numbers read and stored by the GPU's kernels, emulated: by rows, columns, transposed, and through maps."""

import pytest
from marks import needs_aten
from test_compiler_whole_numbers import PLACES_OF, check
from whole_number_cases import CALLS, PLACES, PROGRAMS

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    with emulated(multiprocessors=2, seed=0):
        kinds = check(*PROGRAMS[name])
    assert "stitch" in kinds


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    with emulated(multiprocessors=2, seed=0):
        check(*CALLS[name])


@pytest.mark.parametrize("name", PLACES_OF)
@pytest.mark.parametrize("of", ["ties", "NaN and infinities", "bf16"])
def test_places(name, of):
    with emulated(multiprocessors=3, seed=1):
        check(lambda x: PLACES_OF[name](x, -1), PLACES[of])
