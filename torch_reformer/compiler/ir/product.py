"""Matrix products whose kernels can have a program as their epilogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ...program import Program
from ...runtime import native
from .fake_tensors import real_tensors
from .graph import Conv, Map, Operation, View
from .layout import Layout

PRODUCTS = torch.ops.aten.mm.default, torch.ops.aten.addmm.default  # PyTorch's, that such a kernel can replace
_DTYPES = {torch.bfloat16: "BF16", torch.float16: "FP16"}


@dataclass(eq=False)
class Product(Conv):
    """A matrix product: the 1x1 convolution of an image with a pixel a row, which lies in memory as the matrix does.

    Args:
        bias: the addition of a bias to it, if PyTorch's operator adds one.
        epilogue: the operations that may follow in its kernel (fusion/anchor_products.py).
        device: the GPU that the plan is for, as the library names it.
    """

    bias: Map | None
    epilogue: frozenset[Operation]
    device: str

    @property
    def key(self) -> str:
        """Its text as a problem."""
        (_, depth, rows, _), columns = self.input.layout.sizes, self.weight.layout.sizes[0]
        order = "nn" if self.reads_columns else "tn"
        return f"gemm-{rows}-{columns}-{depth}-{order}-{_DTYPES[self.results[0].dtype]}"

    def choice(self, program: Program) -> native.Epilogue:
        """The library's choice between a kernel that computes it with a program, and a kernel of the program's own."""
        with real_tensors():
            return native.epilogue(native.problem_parse(self.key), self.device, program.code)[0]

    @property
    def reads_columns(self) -> bool:
        """True if adjacent elements of the second factor belong to different columns of the product."""
        return self.weight.layout.strides[0] == 1

    @property
    def matrices(self) -> tuple[View, View]:
        """The factors of the product."""
        (_, depth, rows, _), columns = self.input.layout.sizes, self.weight.layout.sizes[0]
        (_, of_depth, of_rows, _), of_columns = self.input.layout.strides, self.weight.layout.strides[0]
        first = Layout((rows, depth), (of_rows, of_depth), self.input.layout.offset)
        second = Layout((depth, columns), (self.weight.layout.strides[1], of_columns), self.weight.layout.offset)
        return View(self.input.value, first), View(self.weight.value, second)

    def text(self) -> str:
        return f"product({', '.join(map(str, self.matrices))})"

    def is_call(self, following: Iterable[Operation]) -> bool:
        """True if PyTorch's operator computes the product with these operations."""
        return all(operation is self.bias for operation in following)


def result_layout(conv: Conv) -> Layout:
    """Layout [N, K, H, W] of a convolution's result; that of a product, which is row-major, is in channels_last."""
    layout = conv.results[0].layout
    if not isinstance(conv, Product):
        return layout
    rows, columns = layout.sizes
    return Layout((1, columns, rows, 1), (rows * columns, 1, columns, columns), layout.offset)
