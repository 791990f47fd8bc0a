"""Convolutions for tests: geometries, tensors with strides of all kinds, and expected results."""

from __future__ import annotations

import dataclasses
import math
import os

import torch
from hypothesis import strategies as st

from torch_reformer import ConvProblem
from torch_reformer.operators.fake import result_is_channels_last
from torch_reformer.problem import TORCH_DTYPES
from torch_reformer.runtime import native

DTYPES = list(TORCH_DTYPES.values())
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
ops = torch.ops.reformer


@dataclasses.dataclass(frozen=True)
class Case:
    n: int = 2
    c: int = 4
    h: int = 6
    w: int = 5
    k: int = 6
    r: int = 3
    s: int = 3
    padding: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def geometry(self):
        return self.stride, self.padding, self.dilation, self.groups

    @property
    def input_size(self):
        return self.n, self.c, self.h, self.w

    @property
    def weight_size(self):
        return self.k, self.c // self.groups, self.r, self.s

    @property
    def output_size(self):
        extents = zip((self.h, self.w), (self.r, self.s), self.padding, self.stride, self.dilation, strict=True)
        return self.n, self.k, *((size + 2 * p - d * (f - 1) - 1) // s + 1 for size, f, p, s, d in extents)

    def summed(self, direction: str) -> int:
        """Number of products that are added up for an element of the result."""
        taps = self.r * self.s
        n, _, out_h, out_w = self.output_size
        return {"F": self.c // self.groups * taps, "B": self.k // self.groups * taps, "W": n * out_h * out_w}[direction]

    @property
    def has_idle_column(self) -> bool:
        """True if some column of the filter meets only padding. PyTorch's convolution can then crash in channels_last
        (csrc/dispatch/aten_solvers.cpp)."""
        for column in range(self.s):
            start = column * self.dilation[1] - self.padding[1]
            first = max(0, -(start // self.stride[1]))
            if first >= self.output_size[3] or start + first * self.stride[1] >= self.w:
                return True
        return False

    def problem(self, direction: str, first, second, bias=False) -> ConvProblem:
        """The problem that this direction's operator makes of these two operands."""
        (stride, padding, dilation, groups) = self.geometry
        sizes = self.n, self.c, self.h, self.w, self.k, self.r, self.s
        layout = "NHWC" if result_is_channels_last(first, second) else "NCHW"
        dtype = DTYPE_NAMES[first.dtype]
        return ConvProblem(*sizes, *padding, *stride, *dilation, groups, direction, dtype, layout, bias)


def examples(count: int) -> int:
    """Number of examples of a random test: the share REFORMER_EXAMPLES of `count`; `make test-all` sets it to 1."""
    return max(1, round(count * float(os.environ.get("REFORMER_EXAMPLES", "0.2"))))


def _channels():
    return st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 32, 40])


@st.composite
def cases(draw, largest=12) -> Case:
    """Small cases of every kind of geometry that is not empty; half of the extents are asymmetric."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 8, 20]))
    c = groups * (draw(_channels()) if groups < 4 else draw(st.sampled_from([1, 1, 2])))
    k = groups * (draw(_channels()) if groups < 4 else draw(st.sampled_from([1, 1, 2])))
    pairs = {}
    for name, values in dict(
        f=(1, 1, 3, 3, 2, 5, 7), padding=(0, 1, 2, 3), stride=(1, 1, 2, 3), dilation=(1, 1, 2)
    ).items():
        first = draw(st.sampled_from(values))
        pairs[name] = (first, draw(st.sampled_from((first, *values))))
    extents = []
    for d in (0, 1):
        least = max(1, pairs["dilation"][d] * (pairs["f"][d] - 1) + 1 - 2 * pairs["padding"][d])
        extents.append(draw(st.integers(least, max(least, largest))))
    r, s = pairs.pop("f")
    return Case(draw(st.integers(1, 3)), c, *extents, k, r, s, groups=groups, **pairs)


STRIDES = ["contiguous", "channels_last", "sliced", "transposed", "expanded", "unaligned"]


def strided(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The tensor's values (for "expanded", those of one channel) with other strides."""
    if how == "contiguous":
        return tensor.contiguous()
    if how == "channels_last":
        return tensor.contiguous(memory_format=torch.channels_last)
    if how == "transposed":
        return tensor.mT.contiguous().mT
    if how == "expanded":
        return tensor[:, :1].expand_as(tensor)
    larger = [2 * size for size in tensor.shape] if how == "sliced" else [*tensor.shape[:3], tensor.shape[3] + 1]
    result = tensor.new_zeros(larger)
    result = result[::2, 1::2, ::2, 1::2] if how == "sliced" else result[..., 1:]
    return result.copy_(tensor)


def values(size, dtype, generator: torch.Generator, integers: bool) -> torch.Tensor:
    if integers:  # few and small enough for every sum to be exact in fp32
        return torch.randint(-3, 4, size, generator=generator).to(dtype)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def directions(case: Case, x, w, y, bias=None) -> dict:
    """For each direction: the two operands and the function that computes the result from them."""
    geometry = case.geometry
    return {
        "F": ((x, w), lambda x, w: ops.conv2d(x, w, bias, *geometry)),
        "B": ((w, y), lambda w, y: ops.conv2d_input_grad(case.input_size, w, y, *geometry)),
        "W": ((x, y), lambda x, y: ops.conv2d_weight_grad(case.weight_size, x, y, *geometry)),
    }


def by_pytorch(case: Case, direction: str, first, second, bias=None) -> torch.Tensor:
    """PyTorch's result from NCHW copies: in NHWC it can corrupt memory (csrc/dispatch/aten_solvers.cpp)."""
    stride, padding, dilation, groups = case.geometry
    first, second = first.contiguous(), second.contiguous()
    if direction == "F":
        return torch.conv2d(first, second, bias, stride, padding, dilation, groups)
    unread = first.new_empty(case.input_size if direction == "B" else case.weight_size)
    x, w = (unread, first) if direction == "B" else (first, unread)
    mask = [direction == "B", direction == "W", False]
    arguments = second, x, w, None, stride, padding, dilation, False, [0, 0], groups, mask
    return torch.ops.aten.convolution_backward(*arguments)["BW".index(direction)]


def in_double(case: Case, direction: str, first, second, bias=None) -> torch.Tensor:
    bias = None if bias is None else bias.double()
    return by_pytorch(case, direction, first.double(), second.double(), bias)


def solvers_for(problem: ConvProblem) -> list[str]:
    """Names of all solvers that can compute the problem, among them the reference, which can compute every problem."""
    candidates, _ = native.candidates(problem.native(), None)
    return [c.name.decode() for c in candidates if c.reason is None] + ["reference"]


def chosen_for(problem: ConvProblem) -> str:
    return native.solver_names()[native.decide(problem.native())]


WINOGRAD = {"winograd_2x4": 3.7, "winograd_4x4": 8.2}


def expected_rounding(solver: str, count: int) -> float:
    """Standard deviation of the fp32 rounding error of a sum of `count` products.

    The unit is eps times the root of the sum of the products' squares.

    An addition rounds by 0.21 eps of its result (uniform within half a unit in the last place, averaged over the
    mantissas); partial sums grow with the root of the number of terms, so a chain of n additions rounds by 0.21
    sqrt(n/2). Kernels add up runs of at most 96 terms and then the runs' sums (csrc/cpu/simd/runs.h). Winograd adds up
    runs of 8 over the channels, and its output transform enlarges the errors of all points' products: the factor in
    WINOGRAD is the root of the sum over points of (row of A)^2 |row of G|^2 |row of B^T|^2, over that of a direct sum,
    for the worst output of a tile. Where products and transforms are rounded too, each is one more rounding.
    """
    if solver.startswith("aten"):  # some of PyTorch's kernels add up in a single chain
        return 0.21 * math.sqrt(1 + count / 2)
    if solver in WINOGRAD:
        channels = count / 9
        return WINOGRAD[solver] * 0.21 * math.sqrt(2 + (min(channels, 8) + channels / 8) / 2)
    return 0.21 * math.sqrt(1 + (min(count, 96) + count / 64) / 2)


def significant_strides(tensor: torch.Tensor) -> list:
    """Strides of the dimensions that have more than one element."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
