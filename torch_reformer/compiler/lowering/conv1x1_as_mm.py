"""Convolutions of 1x1 images by 1x1 filters, as in squeeze-and-excitation blocks, as matrix products.

With so few bytes, the host time of a vendor's convolution is several times that of a matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of, typed
from ..ir.graph import Call, Graph, Typed, View
from ..ir.layout import Layout

aten = torch.ops.aten


def is_product(input: View, weight: View, stride, padding, dilation, transposed: bool, groups: int) -> bool:
    """True if the convolution is a matrix product of input [N, C, 1, 1] and weight [K, C, 1, 1]."""
    types = {input.value.dtype, weight.value.dtype}
    if transposed or groups != 1 or len(types) > 1 or not types <= set(FLOATS) or any(padding):
        return False
    sizes = input.layout.sizes, weight.layout.sizes
    return all(len(shape) == 4 and shape[2:] == (1, 1) and shape[0] * shape[1] for shape in sizes)


def convolution(graph: Graph, value: Tensor, input: View, weight: View, bias: View | None) -> View:
    """Add the convolution as aten.mm, or as aten.addmm with a bias. value: the fake result."""
    operands = (_matrix(input), _matrix(weight).transposed())
    if bias is None:
        return _product(graph, aten.mm.default, operands, value)
    return _product(graph, aten.addmm.default, (bias, *operands), value)


def gradients(graph: Graph, values, grad: View, input: View, weight: View, wanted) -> list[View | None]:
    """Add the gradients of input and weight that are wanted; None for others. values: the fake gradients."""
    grad = _matrix(grad)
    operands = (grad, _matrix(weight)), (grad.transposed(), _matrix(input))
    return [
        _product(graph, aten.mm.default, factors, value) if is_wanted else None
        for value, is_wanted, factors in zip(values, wanted, operands, strict=True)
    ]


def _matrix(view: View) -> View:
    """The first two dimensions of a view whose others have one element."""
    layout = view.layout
    return View(view.value, Layout(layout.sizes[:2], layout.strides[:2], layout.offset))


def _product(graph: Graph, operator, operands: tuple[View, ...], value: Tensor) -> View:
    """Add a matrix product, and view it as the fake result [rows, columns, 1, 1]."""
    rows, columns = value.shape[:2]
    _, dtype, device = typed(value)
    (product,) = graph.add(Call(operator, operands, {}), [Typed(Layout((rows, columns), (columns, 1)), dtype, device)])
    expected, row_major = layout_of(value), Layout((rows, columns, 1, 1), (columns, 1, 1, 1))
    return View(product, expected if expected.matches(row_major) else row_major)
