"""The emulator copies boxes as Hopper's copy engine does, and finds a kernel's mistakes with it."""

import ctypes
import re

import numpy
import pytest

import emulator
from emulator import plans

pytestmark = emulator.needed

FILE = "test/hip/planted_tma_bugs.hip"
THREADS, BOX = 128, 64  # lines, and elements per line


class Arguments(ctypes.Structure):
    _fields_ = [("maps", ctypes.c_char * 256), ("numbers", ctypes.c_int32 * 9), ("padding", ctypes.c_char * 28)]


def launch(name, arguments, seed, cluster=1):
    options = dict(threads=THREADS, arguments=arguments, shared_bytes=2 * BOX * BOX * 2 + 8, seed=seed)
    emulator.launch(FILE, name, grid=(1, 1, cluster), cluster=cluster, **options)


def matrix_map(arguments, i, matrix):
    where = ctypes.c_void_p(ctypes.addressof(arguments) + 128 * i)
    plans.library("tma_launch").matrix_map(ctypes.c_void_p(matrix.ctypes.data), *matrix.shape, BOX, where)


def run(name, seed=0, source=None, first=(0, 0), to=(0, 0), size=(BOX, BOX), cluster=1):
    """Copy a box of `source` into zeros of this size, if the kernel does so. Places are (line, element)."""
    source = numpy.ones((BOX, BOX), numpy.uint16) if source is None else source
    result = numpy.zeros(size, numpy.uint16)
    arguments = Arguments()
    matrix_map(arguments, 0, source)
    matrix_map(arguments, 1, result)
    arguments.numbers[:4] = [*reversed(first), *reversed(to)]
    launch(name, arguments, seed, cluster)
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
    for seed in range(1 if name == "ends_before_the_load" else 4):  # with other seeds the data may arrive in time
        assert complaint(name, seed).endswith(COMPLAINTS[name])


def test_stores_begin_in_the_tensor():
    for to in ((-1, 0), (0, -8)):
        sentence = "thread 0, tma::store (FILE): a store can't begin before the tensor does"
        assert complaint("no_tma_bug", to=to).endswith(sentence)


# --- pairs of blocks
def test_pairs_load_for_both():
    source = numpy.random.default_rng(0).integers(1, 1 << 16, (2 * BOX, BOX), numpy.uint16)
    for seed in range(4):
        numpy.testing.assert_array_equal(run("no_bug_of_pairs", seed, source, size=source.shape, cluster=2), source)


OF_PAIRS = {
    "pair_that_does_not_meet_again": "block (0, 0, 1): all threads have ended while a copy was under way",
    "pair_of_which_one_meets": "128 threads have ended, 128 threads at cluster_meet (FILE); all threads of a block "
    "have to come to the same barrier",
    "arrives_at_no_block": "tma::arrive_there (FILE): no block of the cluster has this rank",
}


@pytest.mark.parametrize("name", OF_PAIRS)
def test_complaints_of_pairs(name):
    assert complaint(name, cluster=2).endswith(OF_PAIRS[name])


def test_pairs_need_clusters():
    assert complaint("no_bug_of_pairs").endswith("tma::load_for_both (FILE): there are no two blocks in the cluster")


# --- windows
class Windows:
    """Windows of images [n][h][w][channels]; along w and h: first window's position, number of windows and step."""

    def __init__(self, images, w, h, pixels=BOX):
        self.images, self.w, self.h = images, w, h
        n, height, width, channels = images.shape
        self.numbers = (ctypes.c_int32 * 11)(channels, width, *w, height, *h, n, pixels)

    def map(self, arguments=None, i=0):
        """Reason why there is no tensor map, or None."""
        to = Arguments() if arguments is None else arguments
        make = plans.library("tma_launch").make_windows_map
        make.restype = ctypes.c_char_p
        where = ctypes.c_void_p(ctypes.addressof(to) + 128 * i)
        refusal = make(ctypes.c_void_p(self.images.ctypes.data), self.numbers, where)
        return refusal and refusal.decode()

    def places(self, number):
        """w, h and n where each of BOX windows begins, starting with window `number`."""
        for at in range(number, number + BOX):
            image, at = divmod(at, self.w[1] * self.h[1])
            line, column = divmod(at, self.w[1])
            yield self.w[0] + column * self.w[2], self.h[0] + line * self.h[2], image


def images_of(n=3, h=7, w=9, channels=72):
    return numpy.random.default_rng(0).integers(1, 1 << 16, (n, h, w, channels), numpy.uint16)


def run_windows(windows, channel, number, offset=(0, 0), name="no_bug_of_windows", shift=0, seed=0):
    """Copy windows to a matrix, one per line. offset: w, h; shift: distance along w from a window's beginning."""
    arguments, result = Arguments(), numpy.zeros((BOX, BOX), numpy.uint16)
    assert windows.map(arguments) is None
    matrix_map(arguments, 1, result)
    w, h, n = next(windows.places(number))
    arguments.numbers[:] = [channel, 0, 0, 0, w + shift, h, n, *offset]
    launch(name, arguments, seed)
    return result


# first window, number and step, for w and for h, of images of 9 x 7
WINDOWS = {
    "3x3": ((-1, 9, 1), (-1, 7, 1)),
    "3x3, stride 2": ((-1, 5, 2), (-1, 4, 2)),
    "5x1, stride 3": ((-2, 3, 3), (0, 3, 3)),
    "past the image": ((-4, 2, 1), (8, 3, 2)),
    "larger than the image": ((-3, 15, 1), (-4, 15, 1)),
    "all outside": ((-100, 1, 1), (107, 1, 8)),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_are_read(kind):
    images = images_of()
    n, h, w, channels = images.shape
    windows = Windows(images, *WINDOWS[kind])
    for seed, (channel, number, offset) in enumerate([(0, 0, (0, 0)), (64, 3, (2, 1)), (8, 40, (0, 255))]):
        expected = numpy.zeros((BOX, BOX), numpy.uint16)
        if number >= 2 * windows.w[1] * windows.h[1]:
            number = 1
        for line, (at_w, at_h, image) in enumerate(windows.places(number)):
            x, y = at_w + offset[0], at_h + offset[1]
            if 0 <= x < w and 0 <= y < h and image < n:
                pixel = images[image, y, x, channel : channel + BOX]
                expected[line, : len(pixel)] = pixel
        result = run_windows(windows, channel, number, offset, seed=seed)
        numpy.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("wrong", [(-1, 10, 1), (-2, 9, 1), (-1, 8, 1)])
def test_a_wrong_corner_is_a_wrong_result(wrong):
    w, h = WINDOWS["3x3"]
    right = run_windows(Windows(images_of(), w, h), 0, 0, offset=(1, 1))
    assert (run_windows(Windows(images_of(), wrong, h), 0, 0, offset=(1, 1)) != right).any()


@pytest.mark.parametrize("w, h", [((0, 9, 1), (0, 7, 1)), ((1, 4, 2), (0, 4, 2)), ((2, 3, 3), (6, 1, 1))])
def test_windows_are_stored(w, h):
    source = numpy.random.default_rng(1).integers(1, 1 << 16, (BOX, BOX), numpy.uint16)
    for channel, number in ((0, 0), (64, 5), (0, 2 * w[1] * h[1] + 1)):
        windows = Windows(numpy.zeros((3, 7, 9, 72), numpy.uint16), w, h)
        expected = windows.images.copy()
        for line, (x, y, image) in enumerate(windows.places(number)):
            if image < 3:
                expected[image, y, x, channel : channel + BOX] = source[line, : 72 - channel]
        arguments = Arguments()
        matrix_map(arguments, 0, source)
        assert windows.map(arguments, 1) is None
        arguments.numbers[:7] = [0, 0, channel, 0, *next(windows.places(number))]
        launch("no_bug_of_stored_windows", arguments, number)
        numpy.testing.assert_array_equal(windows.images, expected)


@pytest.mark.parametrize("w, h", [((0, 10, 1), (0, 7, 1)), ((-1, 9, 1), (0, 7, 1)), ((0, 9, 1), (1, 4, 2))])
def test_windows_outside_of_an_image_are_not_stored(w, h):
    arguments, source = Arguments(), numpy.zeros((BOX, BOX), numpy.uint16)
    matrix_map(arguments, 0, source)
    windows = Windows(images_of(), w, h)
    assert windows.map(arguments, 1) is None
    arguments.numbers[:7] = [0, 0, 0, 0, *next(windows.places(0))]
    with pytest.raises(emulator.KernelError, match="there are windows to store outside of the image"):
        launch("no_bug_of_stored_windows", arguments, 0)


BEGINNINGS = "thread 0, tma::load_windows (FILE): "
WRONG = {  # name, offset, shift
    f"128 threads at tma::wait (FILE); {STUCK}": ("too_few_bytes_of_windows", (0, 0), 0),
    BEGINNINGS + "no window begins there": ("no_bug_of_windows", (0, 0), 1),
    BEGINNINGS + "a window has at most 256 pixels along an axis": ("no_bug_of_windows", (256, 0), 0),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_complaints_of_windows(sentence):
    name, offset, shift = WRONG[sentence]
    with pytest.raises(emulator.KernelError) as error:
        run_windows(Windows(images_of(), *WINDOWS["3x3, stride 2"]), 0, 0, offset, name, shift)
    assert re.sub(r"planted_tma_bugs.hip:\d+", "FILE", str(error.value)).endswith(sentence)


def test_maps_are_for_one_kind_of_copies():
    arguments, result = Arguments(), numpy.zeros((BOX, BOX), numpy.uint16)
    assert Windows(images_of(), *WINDOWS["3x3"]).map(arguments) is None
    matrix_map(arguments, 1, result)
    with pytest.raises(emulator.KernelError, match="the tensor map is made for the other kind of copies"):
        launch("no_tma_bug", arguments, 0)


REFUSED = {
    "windows begin at most 128 pixels outside of an image": ((-129, 9, 1), (0, 1, 1), BOX),
    "windows are 1 to 8 pixels apart": ((0, 1, 9), (0, 1, 1), BOX),
    "there are no windows": ((0, 0, 1), (0, 1, 1), BOX),
    "a box has 1 to 1024 pixels": ((0, 1, 1), (0, 1, 1), 1025),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_the_driver_refuses(sentence):
    assert Windows(images_of(), *REFUSED[sentence]).map() == sentence
    # The last window begins 128 positions past the image's end, and its corner is 128 positions after that.
    assert (
        Windows(images_of(), (9 + 127, 1, 1), (0, 1, 1)).map() == "windows begin at most 128 pixels outside of an image"
    )
    assert (
        Windows(images_of(channels=12), *WINDOWS["3x3"]).map() == "a tensor map's pixels begin at multiples of 16 bytes"
    )
