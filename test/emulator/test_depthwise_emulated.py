"""The depthwise kernels' own source, on the CPU, against PyTorch in float64: every direction, stride and type."""

import ctypes
import os

import pytest
import torch

import emulator

pytestmark = pytest.mark.skipif(
    emulator.missing() is not None and not os.environ.get("CI"), reason=str(emulator.missing())
)

FILE = "csrc/hip/kernels/depthwise.hip"
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TESTED_TYPES = ["bf16"] if emulator.SANITIZE else list(TYPES)  # sanitizers are slow to compile
THREADS, FINISH_OUTPUTS = 128, 32  # of depthwise.h


class Divider(ctypes.Structure):
    _fields_ = [("divisor", ctypes.c_uint), ("magic", ctypes.c_uint), ("shift", ctypes.c_uint)]

    @classmethod
    def by(cls, divisor: int):
        """make_divider of csrc/hip/device/divide.h."""
        shift = (divisor - 1).bit_length()
        return cls(divisor, -(-(1 << (31 + shift)) // divisor), shift)


class Arguments(ctypes.Structure):
    """DepthwiseArgs."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("x", "y", "filter", "bias", "result")],
        *[(name, ctypes.c_int) for name in ("channels", "h", "w", "out_h", "out_w", "pad_h", "pad_w", "taps")],
        *[(name, ctypes.c_int) for name in ("copy_bytes", "log_lanes", "tile_rows", "tile_columns")],
        *[(name, ctypes.c_int) for name in ("source_rows", "source_columns", "strips", "tiles", "splits")],
        *[(name, Divider) for name in ("tiles_across", "tiles_down")],
        *[(name, Divider) for name in ("by_source_places", "by_tile_places", "by_strips_across")],
    ]


def run(entry, arguments, grid, shared_bytes, warp, seed):
    name = "depthwise_" + "_".join(map(str, entry))
    define = "REFORMER_ENTRY=" + ", ".join(map(str, entry))
    emulator.launch(
        FILE,
        name,
        grid=grid,
        threads=THREADS,
        arguments=arguments,
        shared_bytes=shared_bytes,
        seed=seed,
        warp=warp,
        defines=(define,),
    )


def tiled(a: Arguments, what, type_name, r, stride, v, tw, pictures):
    """Fills in how the work is cut into tiles, small ones, and returns the grid and the bytes of shared memory."""
    size = TYPES[type_name].itemsize
    channels = v << a.log_lanes
    gathers = what == "input_grad" and stride > 1  # each pixel from whole rows of y; a correlation otherwise
    rows = stride if gathers else 2 if stride == 1 else 1  # of a strip
    a.tile_rows, a.tile_columns = 2 * rows, 2 * tw
    a.strips, a.by_strips_across = 2 * 2, Divider.by(2)
    step = 1 if what == "input_grad" else stride
    a.source_rows, a.source_columns = (a.tile_rows - 1) * step + r, (a.tile_columns - 1) * step + r
    height, width = (a.h, a.w) if what == "input_grad" else (a.out_h, a.out_w)
    if gathers:
        before = (r - 1) // stride
        a.source_rows, a.source_columns = (before + (side - 1) // stride + 1 for side in (a.tile_rows, a.tile_columns))
        height, width = height + a.pad_h % stride, width + a.pad_w % stride
    down, across = -(-height // a.tile_rows), -(-width // a.tile_columns)
    groups = -(-a.channels // channels)
    a.tiles_across, a.tiles_down = Divider.by(across), Divider.by(down)
    a.by_source_places, a.by_tile_places = (
        Divider.by(columns * channels * size // a.copy_bytes) for columns in (a.source_columns, a.tile_columns)
    )
    a.tiles = pictures * down * across
    pixels = a.source_rows * a.source_columns + (a.tile_rows * a.tile_columns if what == "weight_grad" else 0)
    shared_bytes = 2 * pixels * channels * size  # of one tile, and of the next
    if what == "weight_grad":
        return (groups, a.splits, 1), max(shared_bytes, r * r * v * THREADS // 2 * 4)
    return (groups, a.splits, 1), shared_bytes + r * r * channels * 4


def depthwise(what, type_name, r, stride, v, tw, x, y, filter, bias, pad, *, warp, seed):
    """The kernels' result; x, or y in forward, says only the size of the result. All channels last, as NCHW."""
    pictures, channels, h, w = x.shape
    size = TYPES[type_name].itemsize
    memory = {
        "x": x.permute(0, 2, 3, 1).contiguous(),
        "y": y.permute(0, 2, 3, 1).contiguous(),
        "filter": filter.contiguous(),
    }
    pointers = {key: tensor.data_ptr() for key, tensor in memory.items()}
    a = Arguments(channels=channels, h=h, w=w, out_h=y.shape[2], out_w=y.shape[3], pad_h=pad[0], pad_w=pad[1])
    a.copy_bytes = next(count for count in (16, 8, 4) if channels * size % count == 0)
    a.log_lanes = max(2, (16 // size // v).bit_length() - 1)
    a.taps, a.splits = r * r, 3
    grid, shared_bytes = tiled(a, what, type_name, r, stride, v, tw, pictures)
    reads = {"forward": ("x", "filter"), "input_grad": ("y", "filter"), "weight_grad": ("x", "y")}[what]
    for key in reads:
        setattr(a, key, pointers[key])
    if what == "forward" and bias is not None:
        a.bias = bias.data_ptr()
    if what == "weight_grad":
        result = torch.full((a.splits, r * r, channels), torch.nan)
    else:
        result = torch.full_like(memory["y" if what == "forward" else "x"], torch.nan)
    a.result = result.data_ptr()
    run((what, type_name, r, stride, v, tw), a, grid, shared_bytes, warp, seed)
    if what != "weight_grad":
        return result.permute(0, 3, 1, 2)

    a.x, a.y, a.result = result.data_ptr(), None, pointers["filter"]
    memory["filter"].fill_(torch.nan)
    blocks = -(-r * r * channels // FINISH_OUTPUTS)
    run(("finish", type_name, 0, 0, 0, 0), a, (blocks, 1, 1), 0, warp, seed)
    return memory["filter"]


# (direction, filter, stride, channels a thread, columns of a strip, channels, size of x, padding): channels that fill
# no block, pictures that fill no tile.
CASES = [
    ("forward", 3, 1, 4, 7, 24, (9, 17), (1, 1)),
    ("forward", 5, 2, 2, 4, 10, (12, 21), (2, 1)),
    ("forward", 7, 1, 2, 4, 6, (8, 9), (3, 3)),
    ("input_grad", 3, 1, 2, 4, 10, (9, 11), (1, 0)),
    ("input_grad", 3, 2, 4, 4, 24, (10, 13), (1, 1)),
    ("input_grad", 5, 2, 2, 8, 6, (11, 20), (2, 1)),
    ("input_grad", 7, 1, 2, 7, 10, (9, 16), (3, 2)),
    ("weight_grad", 3, 1, 4, 4, 24, (9, 11), (1, 1)),
    ("weight_grad", 5, 2, 2, 7, 10, (12, 21), (2, 0)),
    ("weight_grad", 7, 2, 2, 4, 6, (13, 14), (3, 3)),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
@pytest.mark.parametrize("type_name", TESTED_TYPES)
def test_against_pytorch(type_name, case):
    what, r, stride, v, tw, channels, (h, w), pad = case
    dtype = TYPES[type_name]

    def integers(*shape):  # small ones: sums are exact in fp32, so that the result is the exact one, rounded once
        return torch.randint(-4, 5, shape).double()

    x, filter, bias = integers(2, channels, h, w), integers(channels, 1, r, r), integers(channels)
    y = torch.nn.functional.conv2d(x, filter, bias, stride, pad, groups=channels)
    dy = integers(*y.shape)
    shapes = ((stride, stride), pad, (1, 1), False, (0, 0), channels, (True, True, False))
    dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, filter, None, *shapes)
    expected = {"forward": y, "input_grad": dx, "weight_grad": dw}[what].to(dtype)
    for warp, seed in ((32, 0), (64, 1)):
        tensors = [tensor.to(dtype) for tensor in (x, dy, filter)]
        got = depthwise(what, type_name, r, stride, v, tw, *tensors, bias.to(dtype), pad, warp=warp, seed=seed)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
