"""The emulator copies boxes as Hopper's copy engine does, and finds what a kernel does wrong with it."""

import ctypes
import re

import numpy
import pytest

import emulator
from emulator import plans

pytestmark = emulator.needed

FILE = "test/hip/planted_tma_bugs.hip"
THREADS, BOX = 128, 64  # lines, and elements of each


class Arguments(ctypes.Structure):
    _fields_ = [("maps", ctypes.c_char * 256), ("numbers", ctypes.c_int32 * 4), ("padding", ctypes.c_char * 48)]


def run(name, seed=0, source=None, first=(0, 0), to=(0, 0), size=(BOX, BOX)):
    """Copies a box of `source` to zeros of this size, where the kernel does so. Places are (line, element)."""
    planner = plans.library("tma_plan")
    source = numpy.ones((BOX, BOX), numpy.uint16) if source is None else source
    result = numpy.zeros(size, numpy.uint16)
    arguments = Arguments()
    for i, matrix in enumerate((source, result)):
        where = ctypes.c_void_p(ctypes.addressof(arguments) + 128 * i)
        planner.matrix_map(ctypes.c_void_p(matrix.ctypes.data), *matrix.shape, BOX, where)
    arguments.numbers[:] = [*reversed(first), *reversed(to)]
    shared_bytes = 2 * BOX * BOX * 2 + 8
    emulator.launch(
        FILE, name, grid=(1, 1, 1), threads=THREADS, arguments=arguments, shared_bytes=shared_bytes, seed=seed
    )
    return result


@pytest.mark.parametrize("first", [(0, 0), (-3, -5), (40, 80), (13, 64), (200, 0)])
@pytest.mark.parametrize("to", [(0, 0), (50, 24), (0, 72), (70, 0)])
def test_boxes_end_where_tensors_do(first, to):
    source = numpy.random.default_rng(0).integers(1, 1 << 16, (90, 120), numpy.uint16)
    padded = numpy.zeros((600, 600), numpy.uint16)
    padded[200:290, 200:320] = source
    line, element = first[0] + 200, first[1] + 200
    expected = numpy.zeros((300, 300), numpy.uint16)
    expected[to[0] : to[0] + BOX, to[1] : to[1] + BOX] = padded[line : line + BOX, element : element + BOX]
    for seed in range(3):
        result = run("no_tma_bug", seed, source, first, to, (70, 80))
        numpy.testing.assert_array_equal(result, expected[:70, :80])


def test_what_has_not_come_yet_is_no_number():
    assert (run("load_without_wait") == 0xFFFF).all()


CHANGED = "what it reads was written to after it was started, and before it was waited for"
STUCK = "none of them can go on"
COMPLAINTS = {
    "ends_before_the_load": "all threads have ended while a copy was under way",
    "store_without_wait": "thread 0, tma::store (FILE): the thread has ended without waiting until it was read",
    "overwritten_store": f"thread 0, tma::store (FILE): {CHANGED}",
    "barrier_that_nobody_initialised": "tma::wait (FILE): the barrier was not initialised, or was overwritten",
    "too_few_arrivals": f"128 threads at tma::wait (FILE); {STUCK}",
    "too_many_arrivals": "tma::arrive_expecting (FILE): more arrive in a phase than the barrier counts",
    "group_without_a_warp": f"32 threads have ended, 96 threads at tma::group_barrier (FILE); {STUCK}",
    "crooked_box": "thread 0, tma::store (FILE): the address in shared memory is not aligned",
    "past_the_end": "thread 0, tma::store (FILE): the address is past the end of shared memory",
    "overwritten_operand": "an operand was written to after the product was started, and before it was waited for",
}


def complaint(name, seed=0, **options):
    with pytest.raises(emulator.KernelError) as error:
        run(name, seed, **options)
    return re.sub(r"planted_tma_bugs.hip:\d+", "FILE", str(error.value))


@pytest.mark.parametrize("name", COMPLAINTS)
def test_complaints(name):
    for seed in range(1 if name == "ends_before_the_load" else 4):  # with others it may come in time
        assert complaint(name, seed).endswith(COMPLAINTS[name])


def test_stores_begin_in_the_tensor():
    for to in ((-1, 0), (0, -8)):
        sentence = "thread 0, tma::store (FILE): a store can't begin before the tensor does"
        assert complaint("no_tma_bug", to=to).endswith(sentence)
