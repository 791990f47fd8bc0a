"""A process with the stub of MIOpen and the fake HIP, whose paths are in MIOPEN and FAKE_HIP, and helpers for calls.

Tests run a few lines of code after `from miopen.caller import *`; nothing slow is imported here.
"""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from miopen.controls import Stub

P, N, U = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = "Forward", "BackwardData", "BackwardWeights"
DIRECTIONS = (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS)
HALF, FLOAT, INT32, INT8, BFLOAT16, DOUBLE = 0, 1, 2, 3, 5, 6
BYTES = {HALF: 2, BFLOAT16: 2, FLOAT: 4, DOUBLE: 8}
NCHW, NHWC = 0, 1

hip = ctypes.CDLL(os.environ["FAKE_HIP"])
stub = Stub(Path(os.environ["MIOPEN"]))

FUNCTIONS = {
    "GetVersion": [P, P, P],
    "GetErrorString": [N],
    "GetSolverIdConvAlgorithm": [U, P],
    "CreateWithStream": [P, P],
    "SetStream": [P, P],
    "Destroy": [P],
    "CreateTensorDescriptor": [P],
    "DestroyTensorDescriptor": [P],
    "SetNdTensorDescriptorWithLayout": [P, N, N, P, N],
    "SetTensorDescriptor": [P, N, N, P, P],
    "CreateConvolutionDescriptor": [P],
    "DestroyConvolutionDescriptor": [P],
    "InitConvolutionNdDescriptor": [P, N, P, P, P, N],
    "SetConvolutionGroupCount": [P, N],
    "SetConvolutionAttribute": [P, N, N],
}
for direction in DIRECTIONS:
    FUNCTIONS |= {
        f"Convolution{direction}GetSolutionCount": [P] * 6,
        f"Convolution{direction}GetSolution": [P] * 5 + [U, P, P],
        f"Convolution{direction}GetSolutionWorkspaceSize": [P] * 5 + [U, P],
        f"Convolution{direction}CompileSolution": [P] * 5 + [U],
        f"Convolution{direction}Immediate": [P] * 9 + [U, U],
    }


def call(name: str, *arguments: object) -> int:
    """Call miopen<name> and return its status."""
    function = getattr(stub.library, f"miopen{name}")
    function.argtypes = FUNCTIONS[name]
    return function(*arguments)


def made(name: str, *arguments: object) -> int:
    """The object that a function creates."""
    result = ctypes.c_void_p()
    assert call(name, ctypes.byref(result), *arguments) == 0
    return result.value


def ints(*values: int) -> ctypes.Array:
    return (ctypes.c_int * len(values))(*values)


def handle(stream: int | None = None) -> int:
    return made("CreateWithStream", stream)


def tensor(lens: tuple[int, ...], type: int = FLOAT, layout: int = NCHW) -> int:
    result = made("CreateTensorDescriptor")
    assert call("SetNdTensorDescriptorWithLayout", result, type, layout, ints(*lens), len(lens)) == 0
    return result


def convolution(pad: tuple = (0, 0), stride: tuple = (1, 1), dilation: tuple = (1, 1), groups: int = 1) -> int:
    result = made("CreateConvolutionDescriptor")
    assert call("InitConvolutionNdDescriptor", result, 2, ints(*pad), ints(*stride), ints(*dilation), 0) == 0
    assert call("SetConvolutionGroupCount", result, groups) == 0
    return result


@dataclass
class Case:
    """Sizes of a convolution: x is (N, C, H, W), w (K, C / groups, R, S)."""

    x: tuple = (2, 6, 5, 7)
    w: tuple = (4, 6, 3, 3)
    pad: tuple = (1, 1)
    stride: tuple = (1, 1)
    dilation: tuple = (1, 1)
    groups: int = 1
    type: int = FLOAT
    layout: int = NCHW

    @property
    def y(self) -> tuple:
        out = (
            (self.x[2 + i] + 2 * self.pad[i] - self.dilation[i] * (self.w[2 + i] - 1) - 1) // self.stride[i] + 1
            for i in range(2)
        )
        return (self.x[0], self.w[0], *out)

    def bytes_of(self, lens: tuple) -> int:
        n, c, h, w = lens
        return n * c * h * w * BYTES[self.type]

    def lens(self, direction: str) -> tuple[tuple, tuple, tuple]:
        """Sizes of the two operands and the result, in the order of MIOpen's functions."""
        return {
            FORWARD: (self.w, self.x, self.y),
            BACKWARD_DATA: (self.y, self.w, self.x),
            BACKWARD_WEIGHTS: (self.y, self.x, self.w),
        }[direction]


class Run:
    """A convolution with its descriptors and memory; each part may be replaced before a call."""

    def __init__(self, direction: str = FORWARD, case: Case | None = None, handle: int | None = None) -> None:
        self.direction, self.case = direction, case or Case()
        self.handle = handle or made("CreateWithStream", None)
        lens = self.case.lens(direction)
        self.first, self.second, self.third = (tensor(each, self.case.type, self.case.layout) for each in lens)
        self.convolution = convolution(self.case.pad, self.case.stride, self.case.dilation, self.case.groups)
        self.memory = [ctypes.create_string_buffer(self.case.bytes_of(each)) for each in lens]
        self.workspace, self.workspace_bytes = None, 0

    @property
    def descriptors(self) -> tuple:
        return self.handle, self.first, self.second, self.convolution, self.third

    def query(self, id: int) -> tuple[int, int]:
        """Status and workspace bytes."""
        size = ctypes.c_size_t(12345)
        return call(
            f"Convolution{self.direction}GetSolutionWorkspaceSize", *self.descriptors, id, ctypes.byref(size)
        ), size.value

    def with_workspace(self, id: int) -> "Run":
        status, self.workspace_bytes = self.query(id)
        assert status == 0
        self.workspace = ctypes.create_string_buffer(self.workspace_bytes) if self.workspace_bytes else None
        return self

    def compile(self, id: int) -> int:
        return call(f"Convolution{self.direction}CompileSolution", *self.descriptors, id)

    def immediate(self, id: int) -> int:
        first, second, result = self.memory
        return call(
            f"Convolution{self.direction}Immediate",
            *(self.handle, self.first, first, self.second, second, self.convolution, self.third, result),
            *(self.workspace, self.workspace_bytes, id),
        )

    def destroy(self) -> None:
        for each in self.first, self.second, self.third:
            assert call("DestroyTensorDescriptor", each) == 0
        assert call("DestroyConvolutionDescriptor", self.convolution) == 0
        assert call("Destroy", self.handle) == 0
