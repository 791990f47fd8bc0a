"""Convolution problems and matrix products, and their text form, the find-db key of MIOpen."""

from __future__ import annotations

import dataclasses
import operator

import torch

from .runtime import native as _native
from .runtime.arguments import shown

DIRECTIONS = ("F", "B", "W")  # forward, input_grad, weight_grad
LAYOUTS = ("NCHW", "NHWC")
DTYPES = ("FP32", "FP64", "FP16", "BF16", "INT8")
# names, in the order of their numbers in the native library
_NAMES = {"direction": DIRECTIONS, "dtype": DTYPES, "layout": LAYOUTS}
PRODUCT = "gemm-"  # how keys of matrix products begin
TORCH_DTYPES = {"FP32": torch.float32, "FP64": torch.float64, "FP16": torch.float16, "BF16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """Convolution in one direction: everything that the choice of a kernel may depend on besides the device.

    Sizes are in elements: input ``[n, c, h, w]``, filter ``[k, c / groups, r, s]``. ``str()`` gives MIOpen's find-db
    key, for example ``64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F``, and :meth:`parse` reads it back. As in
    MIOpen, the keys of the gradients (``B``, ``W``) name the output's channels and size first.

    A matrix product is the 1x1 convolution of one NHWC image with a pixel a row. Its key is such as
    ``gemm-12608-3072-768-tn-BF16``: rows, columns and depth, and how the factors lie in memory in the words of BLAS:
    ``tn`` for ``x @ w.T`` (forward), ``nn`` and ``nt`` for the gradients ``y @ w`` and ``y.T @ x``.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    direction: str = "F"
    dtype: str = "FP32"
    layout: str = "NCHW"
    bias: bool = False

    @classmethod
    def parse(cls, key: str) -> ConvProblem:
        """Parse a find-db key. Raises ``ValueError`` if it is malformed or inconsistent."""
        if not isinstance(key, str):
            raise ValueError(f"a find-db key must be a string, got {shown(key)}")
        raw = _native.problem_parse(key)
        values = {name: getattr(raw, name) for name in _FIELDS}
        for name, names in _NAMES.items():
            values[name] = names[values[name]]
        values["bias"] = bool(raw.bias)
        return cls(**values)

    def native(self) -> _native.Problem:
        """Struct of the native library for this problem. Raises ``ValueError`` for a value that it can't hold."""
        values = {name: getattr(self, name) for name in _FIELDS}
        for name, value in values.items():
            if name in _NAMES:
                if not isinstance(value, str) or value not in _NAMES[name]:
                    raise ValueError(f"the {name} of a problem is one of {', '.join(_NAMES[name])}, got {shown(value)}")
                values[name] = _NAMES[name].index(value)
            elif not _is_whole(value):
                raise ValueError(f"{name} of a problem must be a whole number, got {shown(value)}")
            elif not 0 <= value < 2**31:
                raise ValueError(f"{name} of a problem must be at least 0 and less than 2^31, got {value}")
        return _native.Problem(**values)

    def __str__(self) -> str:
        return _native.problem_str(self.native())

    def replace(self, **changes) -> ConvProblem:
        """Copy of this problem with some members changed."""
        return dataclasses.replace(self, **changes)

    @property
    def out_h(self) -> int:
        return (self.h + 2 * self.pad_h - self.dilation_h * (self.r - 1) - 1) // self.stride_h + 1

    @property
    def out_w(self) -> int:
        return (self.w + 2 * self.pad_w - self.dilation_w * (self.s - 1) - 1) // self.stride_w + 1

    @property
    def input_size(self) -> tuple[int, int, int, int]:
        return self.n, self.c, self.h, self.w

    @property
    def weight_size(self) -> tuple[int, int, int, int]:
        return self.k, self.c // self.groups, self.r, self.s

    @property
    def output_size(self) -> tuple[int, int, int, int]:
        return self.n, self.k, self.out_h, self.out_w

    @property
    def geometry(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
        """Stride, padding, dilation and groups, as the operators take them."""
        return (
            (self.stride_h, self.stride_w),
            (self.pad_h, self.pad_w),
            (self.dilation_h, self.dilation_w),
            self.groups,
        )

    @property
    def flops(self) -> int:
        """Number of multiplications and additions of the direct algorithm."""
        n, k, out_h, out_w = self.output_size
        return 2 * n * k * out_h * out_w * (self.c // self.groups) * self.r * self.s

    @property
    def is_product(self) -> bool:
        """True for a matrix product."""
        return str(self).startswith(PRODUCT)

    @property
    def kind(self) -> str:
        """Family by which tables group problems: 1x1, depthwise, grouped, stem (at most 4 channels), 3x3 or other."""
        return _native.problem_kind(self.native())


def _is_whole(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return False
    return True


_FIELDS = tuple(field.name for field in dataclasses.fields(ConvProblem))
