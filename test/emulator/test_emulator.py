"""The emulator finds planted bugs, and runs shuffles, asynchronous copies and matrix products as GPUs do."""

import ctypes
import json
import re

import numpy
import pytest

import emulator
from emulator import planted_bugs

PRIMITIVES = "test/hip/primitives.hip"
THREADS = 128

pytestmark = [
    emulator.needed,
    pytest.mark.parametrize("warp", emulator.WARPS),
]


class WarpArguments(ctypes.Structure):
    _fields_ = [
        ("numbers", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("mask", ctypes.c_int),
        ("distance", ctypes.c_int),
    ]


class CopyArguments(ctypes.Structure):
    _fields_ = [("source", ctypes.c_void_p), ("to", ctypes.c_void_p), ("inside", ctypes.c_int)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mask, distance", [(1, 1), (16, 5), (31, 31)])
def test_warp_primitives(warp, seed, mask, distance):
    numbers = numpy.random.default_rng(seed).standard_normal(THREADS, numpy.float32)
    results = numpy.full((THREADS, 8), numpy.nan, numpy.float32)
    arguments = WarpArguments(numbers.ctypes.data, results.ctypes.data, mask, distance)
    emulator.launch(
        PRIMITIVES, "warp_primitives", grid=(1, 1, 1), threads=THREADS, arguments=arguments, seed=seed, warp=warp
    )

    thread = numpy.arange(THREADS)
    lane = thread % warp
    sums = numbers.reshape(-1, warp)
    while sums.shape[1] > 1:  # the butterfly's order
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    expected = [
        numbers[thread ^ mask],
        numbers[thread ^ mask],
        numbers[numpy.where(lane + distance < warp, thread + distance, thread)],
        numbers[thread - lane + 5],
        sums.repeat(warp),
        lane,
        thread // warp,
        numpy.full(THREADS, warp),
    ]
    numpy.testing.assert_array_equal(results, numpy.stack(expected, 1).astype(numpy.float32))


def test_other_processors_switch_stacks_by_ucontext(warp):
    """Other processors, which use ucontext, give equal results and complaints."""
    defines = ("REFORMER_EMULATOR_UCONTEXT",)
    launch = dict(grid=(1, 1, 1), threads=THREADS, warp=warp, defines=defines)
    numbers = numpy.arange(THREADS, dtype=numpy.float32)
    emulator.launch(
        planted_bugs.FILE, "no_missing_barrier", arguments=planted_bugs.Arguments(numbers.ctypes.data), **launch
    )
    numpy.testing.assert_array_equal(numbers, numpy.roll(numpy.arange(THREADS), -2 * warp))
    with pytest.raises(emulator.KernelError, match="88 threads have ended"):
        emulator.launch(planted_bugs.FILE, "divergent_barrier", arguments=bytes(8), **launch)


@pytest.mark.parametrize("inside", [0, 50, THREADS])
def test_async_copies(warp, inside):
    source = numpy.random.default_rng(0).integers(1, 255, 16 * max(inside, 1), numpy.uint8)
    result = numpy.full(28 * THREADS, 255, numpy.uint8)
    arguments = CopyArguments(source.ctypes.data, result.ctypes.data, inside)
    emulator.launch(PRIMITIVES, "async_copies", grid=(1, 1, 1), threads=THREADS, arguments=arguments, warp=warp)
    expected = numpy.zeros_like(result)
    for start, size in ((0, 16), (16, 8), (24, 4)):
        expected[start * THREADS : start * THREADS + size * inside] = source[: size * inside]
    numpy.testing.assert_array_equal(result, expected)


def complaint(name: str, warp: int, seed: int = 0) -> str:
    with pytest.raises(emulator.KernelError) as error:
        planted_bugs.run(name, warp, seed)
    return re.sub(r":\d+\)", ":LINE)", str(error.value))


BARRIER = "barrier (planted_bugs.hip:LINE)"
ALL_OF_BLOCK = "all threads of a block have to come to the same barrier"
ALL_OF_WARP = "all threads of a warp have to come to the same operation"


@pytest.mark.parametrize("seed", range(2))
def test_divergent_barriers(warp, seed):
    block = "block (0, 0, 0)"
    assert complaint("divergent_barrier", warp, seed) == (
        f"divergent_barrier, {block}: 40 threads at {BARRIER}, 88 threads have ended; {ALL_OF_BLOCK}"
    )
    assert complaint("two_barriers", warp, seed) == (
        f"two_barriers, {block}: 64 threads at {BARRIER}, 64 threads at {BARRIER}; {ALL_OF_BLOCK}"
    )


def test_divergent_shuffles(warp):
    shuffle, half = "a shuffle (planted_bugs.hip:LINE)", f"{warp // 2} threads"
    assert complaint("divergent_shuffle", warp) == (
        f"divergent_shuffle, block (0, 0, 0), warp 0: {half} have ended, {half} at {shuffle}; {ALL_OF_WARP}"
    )
    assert complaint("shuffle_and_barrier", warp) == (
        f"shuffle_and_barrier, block (0, 0, 0), warp 0: 10 threads at {BARRIER}, "
        f"{warp - 10} threads at a shuffle (warp.h:LINE); {ALL_OF_WARP}"
    )
    assert complaint("shuffle_from_nowhere", warp) == (
        f"shuffle_from_nowhere, block (0, 0, 0), thread {warp}, {shuffle}: no lane of the warp has this number"
    )


def test_missing_barriers_show_under_some_order_of_threads(warp):
    def wrong_seeds(name):
        expected = numpy.roll(numpy.arange(THREADS, dtype=numpy.float32), -2 * warp)
        return [seed for seed in range(8) if not numpy.array_equal(planted_bugs.run(name, warp, seed), expected)]

    assert wrong_seeds("no_missing_barrier") == []
    assert wrong_seeds("missing_barrier")
    assert wrong_seeds("missing_barrier") == wrong_seeds("missing_barrier"), "a seed repeats"


def test_what_was_not_written_is_no_number(warp):
    assert numpy.isnan(planted_bugs.run("missing_wait", warp)).all()
    for _ in range(2):  # the second block must not find what the first one wrote
        assert numpy.isnan(planted_bugs.run("unwritten_shared", warp)).all()


def test_launches_that_do_not_fit(warp):
    def launch(name="missing_wait", threads=THREADS, arguments=bytes(8), **others):
        emulator.launch(
            planted_bugs.FILE, name, grid=(1, 1, 1), threads=threads, arguments=arguments, warp=warp, **others
        )

    most = emulator.MOST_SHARED[warp]
    for change, sentence in [
        ({"name": "missing"}, "there is no kernel missing in this file"),
        ({"threads": 192}, "missing_wait runs in blocks of at most 128 threads, not 192"),
        ({"threads": 100}, f"blocks of 100 threads are no multiple of the warp's {warp}"),
        ({"arguments": bytes(12)}, "missing_wait takes a structure of 8 bytes, not 12"),
        ({"shared_bytes": 1 << 18}, f"a block has at most {most} bytes of shared memory, not 262144"),
    ]:
        with pytest.raises(emulator.KernelError, match=f"^{sentence}$"):
            launch(**change)
    address = "block (0, 0, 0), thread 0, async_copy (planted_bugs.hip:LINE)"
    assert complaint("crooked_copy", warp) == (
        f"crooked_copy, {address}: an address is not a multiple of the number of bytes"
    )


SANITIZERS_FIND = {
    "past_shared": "global-buffer-overflow|insufficient space for an object",
    "past_dynamic_shared": "heap-buffer-overflow",
    "past_global": "heap-buffer-overflow",
    "copy_past_global": "heap-buffer-overflow",
    "past_local": "stack-buffer-overflow|index 4 out of bounds",
    "crooked_load": "misaligned address",
    "signed_overflow": "signed integer overflow",
}


@pytest.fixture(scope="module")
def found_by_sanitizers():
    """The sanitizers' complaint about each kernel, by (name, warp); None if there is none."""
    cases = [(name, warp) for name in ("no_missing_barrier", *SANITIZERS_FIND) for warp in emulator.WARPS]
    done = emulator.sanitized(["-m", "emulator.planted_bugs", *(f"{name}:{warp}" for name, warp in cases)])
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


@emulator.without_sanitizers
@pytest.mark.parametrize("name", SANITIZERS_FIND)
def test_sanitizers_find(warp, name, found_by_sanitizers):
    text = found_by_sanitizers[name, warp]
    assert text is not None
    assert re.search(SANITIZERS_FIND[name], text), text
    assert "planted_bugs.hip" in text


@emulator.without_sanitizers
def test_sanitizers_find_nothing_in_right_kernels(warp, found_by_sanitizers):
    assert found_by_sanitizers["no_missing_barrier", warp] is None
