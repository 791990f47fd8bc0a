"""Helpers for tests of single kernels whose launches a library of test/hip plans: the library, problems and launches.

The problems have small integers, for which kernels are exact.
"""

import ctypes
import functools

import torch
from compiled import made

import emulator

DIRECTIONS = ["forward", "input_grad", "weight_grad"]
LAYOUTS = ["nchw", "nhwc"]  # in the order of the C++ enumeration Layout
# torch's type and the number of DType
TYPES = {"fp32": (torch.float32, 0), "fp16": (torch.float16, 2), "bf16": (torch.bfloat16, 3)}


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """test/hip/<name>.cpp, compiled."""
    source = emulator.ROOT / f"test/hip/{name}.cpp"
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", f"-I{emulator.ROOT / 'csrc'}"]
    return ctypes.CDLL(str(made(f"{name}.so", [*emulator.COMPILER, *flags], source)))


def numbers_of(geometry, direction, type_name, layout="nhwc"):
    """Numbers of a ConvProblem; geometry: n, c, h, w, k, r, s, two each of padding, stride and dilation, groups."""
    others = [DIRECTIONS.index(direction), TYPES[type_name][1], LAYOUTS.index(layout)]
    return (ctypes.c_int32 * 17)(*geometry, *others)


class Problem:
    """Sizes as in ConvProblem, and integer tensors of these sizes, as fp64 in NCHW."""

    def __init__(
        self, direction, type_name, n, c, h, w, k, r, s, *, pad=(0, 0), stride=(1, 1), dilation=(1, 1), groups=1,
        layout="nhwc",
    ):  # fmt: skip
        self.direction, self.type, self.layout = DIRECTIONS.index(direction), TYPES[type_name], layout
        geometry = [n, c, h, w, k, r, s, *pad, *stride, *dilation, groups]
        self.numbers = numbers_of(geometry, direction, type_name, layout)
        generator = torch.Generator().manual_seed(0)

        def integers(*sizes, most=2):
            return torch.randint(-most, most + 1, sizes, generator=generator).double()

        self.x, self.filter, self.bias = integers(n, c, h, w), integers(k, c // groups, r, s), integers(k, most=9)
        conv = functools.partial(torch.conv2d, stride=stride, padding=pad, dilation=dilation, groups=groups)
        x, filter = self.x.requires_grad_(), self.filter.requires_grad_()
        result = conv(x, filter, self.bias)
        self.y = integers(*result.shape)
        grads = torch.autograd.grad(conv(x, filter), [x, filter], self.y)
        self.x, self.filter = x.detach(), filter.detach()
        self.expected = (result.detach(), *grads)[self.direction]

    def tensor(self, values):
        """The tensor in the problem's type and layout."""
        formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
        return values.to(self.type[0]).contiguous(memory_format=formats[self.layout])

    def no_result(self):
        return torch.full_like(self.tensor(self.expected), torch.nan)

    def check(self, result):
        """Compare with the exact result, rounded once: the sums are exact."""
        expected = self.expected.to(self.type[0]).double()
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=0)


def launch(file, name, entry, arguments, numbers, **options):
    """Launch a kernel; numbers: blocks x, y, z, threads, shared bytes."""
    *grid, threads, shared_bytes = numbers
    emulator.launch(
        f"csrc/hip/{file}.hip",
        name,
        grid=tuple(grid),
        threads=threads,
        arguments=bytes(arguments),
        shared_bytes=shared_bytes,
        defines=(f"REFORMER_ENTRY={entry}", *options.pop("defines", ())),
        **options,
    )
