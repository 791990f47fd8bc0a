"""Max pooling, emulated."""

import ctypes
import struct

import pytest
import torch
import torch.nn.functional as F
from marks import slow

import emulator
from emulator import plans

pytestmark = emulator.needed
NUMBERS = {torch.float64: 1, **{dtype: number for dtype, number in plans.TYPES.values()}}
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def planned(is_forward, dtype, layout, images, channels, rows, columns, tensors=(0, 0, 0)):
    """A launch's kernel, grid, threads and arguments, or the reason why there is none."""
    library = plans.library("max_pool_launch")
    library.plan.restype = ctypes.c_char_p
    axes = [(ctypes.c_int64 * 6)(*each) for each in (rows, columns)]
    pointers = (ctypes.c_void_p * 3)(*tensors)
    arguments = (ctypes.c_char * library.bytes())()
    shape, name = (ctypes.c_uint32 * 4)(), ctypes.create_string_buffer(48)
    numbers = int(is_forward), NUMBERS[dtype], plans.LAYOUTS.index(layout)
    known = *map(ctypes.c_int64, (images, channels)), *axes, pointers
    sentence = library.plan(*numbers, *known, arguments, shape, name)
    return sentence.decode() if sentence else (name.value.decode(), list(shape), bytearray(arguments))


class Pool:
    """Max pooling with the arguments of F.max_pool2d.

    images_each: batch elements per block along y; by default as planned.
    """

    def __init__(self, window, stride=None, padding=0, dilation=1, ceil_mode=False, images_each=None):
        def pair(value):
            return value if isinstance(value, tuple) else (value, value)

        self.geometry = *map(pair, (window, stride or window, padding, dilation)), ceil_mode
        self.images_each = images_each

    def run(self, is_forward, images, results, tensors, layout, **options):
        axes = [
            (images.shape[2 + d], results.shape[2 + d], *(values[d] for values in self.geometry[:4])) for d in range(2)
        ]
        pointers = [tensor.data_ptr() for tensor in tensors]
        name, shape, arguments = planned(is_forward, images.dtype, layout, *images.shape[:2], *axes, pointers)
        if self.images_each:
            count = images.shape[0] * (images.shape[1] if layout == "nchw" else 1)
            struct.pack_into("i", arguments, plans.library("max_pool_launch").place_of_images_each(), self.images_each)
            shape[1] = -(-count // self.images_each)
        *grid, threads = shape
        file = "csrc/hip/pooling/max_pool.hip"
        emulator.launch(file, name, grid=tuple(grid), threads=threads, arguments=bytes(arguments), **options)
        return name

    def check(self, images, layout="nhwc", count=None, pool=F.max_pool2d, **options):
        """Compare with PyTorch, bit by bit: gradients are small integers."""
        images = images.contiguous(memory_format=FORMATS[layout])
        wide = images.double().requires_grad_()
        expected = pool(wide, *self.geometry)
        grad = torch.randint(-8, 9, expected.shape).to(images.dtype).contiguous(memory_format=FORMATS[layout])
        (expected_grad,) = torch.autograd.grad(expected, wide, grad.double())

        result = torch.full_like(grad, 77)
        places = torch.full_like(grad, 254, dtype=torch.uint8)
        names = [self.run(True, images, result, (images, places, result), layout, **options)]
        assert torch.equal(result.double().nan_to_num(99, 98, 97), expected.detach().nan_to_num(99, 98, 97))
        actual = torch.full_like(images, torch.nan)
        names += [self.run(False, images, result, (grad, places, actual), layout, **options)]
        assert torch.equal(actual, expected_grad.to(actual.dtype))
        if count:
            assert all(name.endswith(f"_{count}") for name in names)


POOLS = {
    "3x3 by 2": (Pool(3, 2, 1), (9, 12)),
    "2x2": (Pool(2), (6, 9)),
    "2x2 by 2, ceil": (Pool(2, ceil_mode=True), (7, 9)),
    "3x3 by 2, ceil, padded": (Pool(3, 2, 1, ceil_mode=True), (8, 11)),
    "3x3 by 1": (Pool(3, 1, 1), (7, 6)),
    "3x3 by 3": (Pool(3), (9, 10)),
    "wide": (Pool((2, 7), (1, 3), (1, 2)), (5, 16)),
    "dilated": (Pool(3, (2, 1), 1, (2, 3)), (11, 12)),
    "255 places": (Pool((15, 17), 4, (7, 8)), (20, 21)),
    "one place": (Pool(1, 2), (5, 4)),
    "the whole image": (Pool((5, 6)), (5, 6)),
    "images apart": (Pool(3, 2, 1, images_each=2), (5, 6)),
}


@pytest.mark.parametrize("layout", plans.LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float16, torch.float32)], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_against_pytorch(name, dtype, layout):
    """Small integers: windows have several maxima, of which the first one counts."""
    torch.manual_seed(0)
    pool, size = POOLS[name]
    for channels in (16, 3):
        images = torch.randint(-3, 4, (3, channels, *size)).to(dtype)
        adjacent = 16 // dtype.itemsize if layout == "nhwc" and channels == 16 else 1
        for warp in (32, 64):
            pool.check(images, layout, adjacent, warp=warp, seed=warp)


@pytest.mark.parametrize("layout", plans.LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_nan_and_infinity(dtype, layout):
    """Also with zeros of both signs, which are equal."""
    torch.manual_seed(1)
    some = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -1.0])
    for likely in (8, 4, 2):  # with NaN in many windows, or in none
        images = some[torch.randint(8 - likely, 8, (2, 8, 9, 8))].to(dtype)
        Pool(3, 2, 1).check(images, layout)
    Pool(2).check(torch.full((1, 8, 4, 4), -torch.inf, dtype=dtype), layout)
    images = some[torch.randint(0, 8, (2, 8, 9, 8))].to(dtype)
    images[0] = torch.nan
    images[1] = images[1].nan_to_num(1)
    Pool(3, 2, 1).check(images, layout)


def test_windows_without_elements():
    """Dilated windows without elements; PyTorch's own backward takes some for windows of elements behind the image."""

    def padded(images, window, stride, padding, dilation, ceil_mode):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]), value=-torch.inf)
        return F.max_pool2d(images, window, stride, 0, dilation)

    for layout in plans.LAYOUTS:
        Pool(2, 1, 1, 3).check(torch.randn(2, 8, 2, 4), layout, pool=padded)


AXIS = (8, 4, 2, 2, 0, 1)  # size, outputs, window, stride, padding, dilation


def test_large_sizes():
    """More threads than a 32-bit number counts become many blocks along y."""
    images, rows = 1 << 20, (224, 112, 2, 2, 0, 1)
    for is_forward, layout, channels in ((True, "nhwc", 64), (False, "nchw", 3)):
        name, (x, y, z, threads), _ = planned(is_forward, torch.bfloat16, layout, images, channels, rows, rows)
        assert name.endswith("_8" if layout == "nhwc" else "_1")
        of_image = 112 * 112 * (64 // 8 if layout == "nhwc" else 1)
        assert x * threads < 2**31 and z == 1 and 1 < y < 2**16
        assert x * y * threads >= of_image * images * (1 if layout == "nhwc" else channels)


@pytest.mark.parametrize(
    "rows, channels",
    [((128, 1, 128, 1, 0, 1), 8), ((2**29, 2**28, 2, 2, 0, 1), 8), ((2**15, 2**14, 2, 2, 0, 1), 2**17)],
    ids=["places", "size", "image"],
)
def test_is_refused(rows, channels):
    assert isinstance(planned(True, torch.bfloat16, "nhwc", 1, channels, rows, AXIS), str)
    assert isinstance(planned(True, torch.float64, "nhwc", 1, 8, AXIS, AXIS), str)
    assert not isinstance(planned(True, torch.bfloat16, "nhwc", 1, 8, AXIS, AXIS), str)
